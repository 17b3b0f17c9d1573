"""Whatever values the schema lets through, what is rendered holds together."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.deploy.helm import EXISTING, MONITORING, Target, of_kind, pod_templates, render
from tests.deploy.test_chart_renders import judge
from tests.deploy.test_chart_speaks_the_programs_language import PARSERS, commands
from tests.deploy.trees import Json, merged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True)
words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)
quantities = st.sampled_from(["1", "500m", "2Gi", "1.5G"])
labels = st.dictionaries(names, names, max_size=2)
OUTSIDE = {"ray-token", "redis", "pull"}
"""Names that users bring."""


@st.composite
def values(draw: st.DrawFn) -> Json:
    """Values that the schema lets through."""
    mode = draw(st.sampled_from(["rayCluster", "deployment", "existingRay"]))
    backend = draw(st.sampled_from(["none", "redis", "rocksdb"]))
    drawn: Json = {
        "mode": mode,
        "nameOverride": draw(st.just("") | names),
        "image": {"repository": draw(words), "tag": draw(words)},
        "controller": {
            "port": draw(st.integers(1024, 30000)),
            "metricsPort": draw(st.integers(30001, 65535)),
            "podLabels": draw(labels),
            "podAnnotations": draw(labels),
            "nodeSelector": draw(labels),
            "resources": {"requests": {"cpu": draw(quantities), "memory": draw(quantities)}},
            "settings": {
                "planning": {"interval_s": draw(st.floats(0.1, 1e6))},
                "budget": {"max_bytes": draw(st.integers(1, 2**53))},
            },
        },
        "store": {"existingClaim": draw(st.just("") | names)},
        "ray": {
            "resource": draw(st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True)),
            "auth": {"mode": draw(st.sampled_from(["token", "disabled"])), "existingSecret": ""},
            "gcsFaultTolerance": {"backend": backend, "redis": {"address": "redis:6379"}},
        },
        "agents": {"create": draw(st.booleans())},
        "serviceAccount": {"create": draw(st.booleans())},
        "networkPolicy": {"enabled": draw(st.booleans())},
        "monitoring": {"monitorKind": draw(st.sampled_from(["PodMonitor", "ServiceMonitor"]))},
        "tls": {"existingSecret": draw(st.sampled_from(["", "tls"]))},
        "tests": {"enabled": draw(st.booleans())},
    }
    return merged(drawn, EXISTING) if mode == "existingRay" else drawn


def referred(pod: Json) -> set[tuple[str, str]]:
    """What a pod needs to be there, by kind and name."""
    found: set[tuple[str, str]] = set()
    for volume in pod["spec"].get("volumes", []):
        if "configMap" in volume:
            found.add(("ConfigMap", volume["configMap"]["name"]))
        if "persistentVolumeClaim" in volume:
            found.add(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
    account: Any = pod["spec"]["serviceAccountName"]
    if account != "default":
        found.add(("ServiceAccount", account))
    return found


@settings(
    max_examples=15,
    derandomize=True,
)
@given(drawn=values(), release=names)
def test_what_is_rendered_is_valid_and_refers_to_nothing_that_is_missing(
    drawn: Json, release: str
) -> None:
    found = render(drawn, Target(apis=(MONITORING,), release=release))
    made = {(one["kind"], one["metadata"]["name"]) for one in found}
    assert len(made) == len(found), "no two objects of one name"
    for one in found:
        judge(one)
        assert one["metadata"]["namespace"] == "moe"
        assert len(one["metadata"]["name"]) <= 63
    claim = drawn["store"]["existingClaim"]
    for pod in pod_templates(found):
        mounted = {
            mount["name"] for c in pod["spec"]["containers"] for mount in c.get("volumeMounts", [])
        }
        assert mounted <= {volume["name"] for volume in pod["spec"].get("volumes", [])}
        missing = referred(pod) - made - {("PersistentVolumeClaim", claim)}
        assert not missing
        for container in pod["spec"]["containers"]:
            for program, *rest in commands(container):
                PARSERS[program]().parse_args(rest)
    for one in of_kind(found, "ConfigMap"):
        if one["metadata"]["name"].endswith("-settings"):
            read_settings(one["data"]["settings.yaml"], drawn)


def read_settings(text: str, drawn: Json) -> None:
    """The program reads the file, and reads what was drawn."""
    from eplb_service.settings.sources import load_settings

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.yaml"
        file.write_text(text)
        read = load_settings(file)
    told = drawn["controller"]["settings"]
    assert read.server.port == drawn["controller"]["port"]
    assert read.planning.interval_s == pytest.approx(told["planning"]["interval_s"])
    assert read.budget.max_bytes == told["budget"]["max_bytes"]
