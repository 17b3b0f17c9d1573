"""`make test-kube`: the chart's life on a real kube-apiserver and etcd.

Not a part of `make test`: the server is built first (deploy/kube/build-apiserver).
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.helm import CHART, MAJORS
from tests.deploy.kube_server import Kube, definition_for_1_20, kube_server
from tests.deploy.trees import Json, merged
from tests.host.processes import await_so

pytestmark = pytest.mark.timeout(600)

MODES: dict[str, Json] = {"raycluster": {}, "deployment": {"mode": "deployment"}}
CHANGE: Json = {
    "image": {"tag": "0.2.0"},
    "controller": {"settings": {"gates": {"min_gain": 0.25}}},
}
KINDS = ("deployment", "service", "configmap", "networkpolicy", "poddisruptionbudget")
UNTOUCHED = ("kimi-k3",)
VERBS = (
    ("get", "secrets"),
    ("list", "pods"),
    ("create", "pods"),
    ("update", "deployments.apps"),
    ("get", "nodes"),
    ("delete", "rayclusters.ray.io"),
    ("create", "leases.coordination.k8s.io"),
)
SERVING = Path(__file__).parent / "data" / "serving.yaml"


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    apiserver = Path(os.environ["EPLB_TEST_APISERVER"])
    with (
        tempfile.TemporaryDirectory(prefix="kube-") as folder,
        kube_server(apiserver, Path(folder)) as running,
    ):
        done = running.kubectl(
            "create", "--validate=false", "--filename", "-", given=definition_for_1_20()
        )
        assert done.code == 0, done.complaint
        # `kubectl wait` cannot read the definition before the server has given it conditions.
        await_so(
            lambda: running.kubectl("get", "rayclusters.ray.io").code == 0,
            within_s=60,
            what="RayClusters are served",
            every_s=1.0,
        )
        yield running


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("mode", MODES)
def test_install_upgrade_rollback_uninstall(kube: Kube, mode: str, major: str) -> None:
    namespace = f"{mode}-{major}"
    where = ("--namespace", namespace)

    def helm(*words: str, values: Json | None = None) -> str:
        done = kube.helm(major, *words, *where, values=values)
        assert done.code == 0, done.complaint
        return done.text

    assert kube.kubectl("create", "namespace", namespace).code == 0
    assert kube.kubectl("create", *where, "--filename", str(SERVING)).code == 0
    before = serving(kube, namespace)

    helm("install", "eplb", str(CHART), "--dry-run=server", values=MODES[mode])
    assert "eplb" not in kube.get("service", namespace), "a dry run stores nothing"
    notes = helm("install", "eplb", str(CHART), values=MODES[mode])
    assert "eplb.io/agent" in notes
    first = stored(kube, namespace)
    if mode == "raycluster":
        (cluster,) = kube.get("raycluster", namespace).values()
        assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"

    helm("upgrade", "eplb", str(CHART), values=merged(MODES[mode], CHANGE))
    second = stored(kube, namespace)
    assert second != first
    assert "0.25" in kube.get("configmap", namespace)["eplb-settings"]["data"]["settings.yaml"]
    assert serving(kube, namespace) == before, "not even its resourceVersion"

    helm("rollback", "eplb", "1")
    assert stored(kube, namespace) == first
    assert serving(kube, namespace) == before
    revisions = helm("history", "eplb")
    assert "Rollback to 1" in revisions

    helm("uninstall", "eplb")
    assert not {n for kind in KINDS for n in kube.get(kind, namespace)} - {
        *UNTOUCHED,
        "kube-root-ca.crt",
    }
    assert not kube.get("raycluster", namespace)
    assert "eplb-store" in kube.get("persistentvolumeclaim", namespace), "the store outlives it"
    assert serving(kube, namespace) == before


def serving(kube: Kube, namespace: str) -> Json:
    """The serving deployment, whole."""
    return kube.get("deployment", namespace)["kimi-k3"]


def stored(kube: Kube, namespace: str) -> dict[tuple[str, str], Json]:
    """What of a release is stored, without what the server counts."""
    kinds = (*KINDS, "raycluster", "serviceaccount")
    return {
        (kind, name): one.get("spec") or one.get("data") or {}
        for kind in kinds
        for name, one in kube.get(kind, namespace).items()
        if name.startswith("eplb")
    }


def test_a_wrong_value_never_reaches_the_server(kube: Kube) -> None:
    done = kube.helm("4", "install", "wrong", str(CHART), values={"controller": {"port": 1}})
    assert done.code != 0
    assert "port" in done.complaint
    assert not kube.get("service", "default").keys() - {"kubernetes"}


@pytest.mark.parametrize(("verb", "kind"), VERBS)
def test_the_account_of_the_pods_may_do_nothing(kube: Kube, verb: str, kind: str) -> None:
    kube.kubectl("create", "namespace", "rights")
    done = kube.helm("4", "upgrade", "--install", "eplb", str(CHART), "--namespace", "rights")
    assert done.code == 0, done.complaint
    assert "eplb" in kube.get("serviceaccount", "rights")
    account = "--as=system:serviceaccount:rights:eplb"
    asked = kube.kubectl("auth", "can-i", verb, kind, account, "--namespace", "rights")
    assert asked.text.strip() == "no", asked
    admin = kube.kubectl("auth", "can-i", verb, kind, "--namespace", "rights")
    assert admin.text.strip() == "yes", "the question itself can be answered with yes"


def test_ray_clusters_are_typed(kube: Kube) -> None:
    (cluster,) = kube.get("raycluster", "rights").values()
    cluster["spec"]["workerGroupSpecs"][0]["replicas"] = "one"
    cluster["metadata"] = {"name": "wrong", "namespace": "rights"}

    done = kube.kubectl("create", "--filename", "-", given=json.dumps(cluster))
    assert done.code != 0
    assert "replicas" in done.complaint
