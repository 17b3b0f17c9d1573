"""What the chart renders is what Kubernetes and KubeRay take, whatever the mode and the cluster."""

import itertools
import json
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.architecture.sources import ROOT
from tests.deploy import kuberay
from tests.deploy.helm import (
    CHART,
    MAJORS,
    MODES,
    MONITORING,
    Target,
    containers,
    named,
    objects,
    of_kind,
    pod_templates,
    render,
    run,
    template,
)
from tests.deploy.trees import Json, merged

FOREIGN_KINDS = {"RayCluster", "PodMonitor", "ServiceMonitor", "PrometheusRule", "Certificate"}
KUBES = ("1.20.2", "1.37.0")
REDIS: Json = {"backend": "redis", "redis": {"address": "redis.moe.svc:6379"}}
WITH_PASSWORD: Json = {"redis": {"passwordSecret": {"name": "redis"}}}
ROCKSDB = {"backend": "rocksdb", "rocksdb": {"storageClassName": "fast"}}
VARIANTS: dict[str, Json] = {
    "as it is": {},
    "gcs on redis": {"ray": {"gcsFaultTolerance": REDIS}},
    "gcs with a password": {"ray": {"gcsFaultTolerance": merged(REDIS, WITH_PASSWORD)}},
    "gcs embedded": {"ray": {"gcsFaultTolerance": ROCKSDB}},
    "no token": {"ray": {"auth": {"mode": "disabled", "existingSecret": ""}}},
    "bare": {
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "serviceAccount": {"create": False},
        "agents": {"create": False},
        "tests": {"enabled": False},
        "monitoring": {"dashboards": False},
    },
    "everything said": {
        "image": {"tag": "9", "pullSecrets": [{"name": "pull"}]},
        "store": {"existingClaim": "mine"},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "serviceAccount": {"name": "mine", "annotations": {"a": "b"}},
        "networkPolicy": {"rayDoorsFrom": [{"podSelector": {}}]},
        "monitoring": {"monitor": "always", "rules": "always", "monitorKind": "ServiceMonitor"},
        "agents": {"env": {"EPLB_AGENT_DEPLOYMENT__MODEL": "kimi-k3"}},
        "controller": {
            "extraEnv": [{"name": "TZ", "value": "UTC"}],
            "podAnnotations": {"a": "b"},
            "podLabels": {"team": "moe"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "cpu-only", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
            "settings": {"gates": {"min_gain": 0.1}, "budget": {"max_bytes": 68719476736}},
        },
    },
}


CASES = list(itertools.product(MODES, VARIANTS))


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("mode", MODES)
def test_lint_finds_nothing_even_when_it_is_strict(major: str, mode: str) -> None:
    done = run(major, "lint", "--strict", str(CHART), values=MODES[mode])
    assert done.code == 0, done.text + done.complaint
    assert "WARNING" not in done.text


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "variant"), CASES)
def test_manifests_are_valid_and_the_same_under_both_helms(mode: str, variant: str) -> None:
    values = merged(MODES[mode], VARIANTS[variant])
    target = Target(apis=(MONITORING, "ray.io/v1"), release="y")  # y alone would be a boolean
    four, three = (render(values, target, major=major) for major in ("4", "3"))
    assert sorted(map(repr, four)) == sorted(map(repr, three))
    for one in four:
        judge(one)


@pytest.mark.parametrize("mode", MODES)
def test_a_cluster_of_1_20_gets_what_it_serves(mode: str) -> None:
    found = render(MODES[mode], Target(kube="1.20.2", apis=("policy/v1beta1",)))
    probes = [c["readinessProbe"] for c in containers(found) if "readinessProbe" in c]
    assert all("exec" in probe for probe in probes)
    for one in of_kind(found, "PodDisruptionBudget"):
        assert one["apiVersion"] in ("policy/v1", "policy/v1beta1")


def judge(one: Json) -> None:
    """Let the schema of its kind judge an object."""
    if one["kind"] == "RayCluster":
        assert kuberay.complaints(one) == []
    elif one["kind"] not in FOREIGN_KINDS:
        kubernetes_validate.validate(one, "1.37", strict=True)
    for label in _labels(one):
        assert isinstance(label, str), one
        assert len(label) <= 63


def _labels(one: Json) -> list[Any]:
    pods = [pod["metadata"].get("labels", {}) for pod in pod_templates([one])]
    return [value for tree in (one["metadata"].get("labels", {}), *pods) for value in tree.values()]


def test_our_judge_of_ray_clusters_refuses_what_kuberay_does_not_know() -> None:
    (cluster,) = of_kind(render({}), "RayCluster")
    wrong = merged(cluster, {"spec": {"gcsFaultTolerenceOptions": {}, "rayVersion": 2.6}})
    told = " ".join(kuberay.complaints(wrong))
    assert "gcsFaultTolerenceOptions" in told
    assert "rayVersion" in told


def test_monitors_and_rules_are_made_only_where_the_cluster_serves_them() -> None:
    kinds = {"PodMonitor", "PrometheusRule"}
    without = {one["kind"] for one in render({})}
    assert not kinds & without
    assert "PodMonitor" in {one["kind"] for one in render({}, Target(apis=(MONITORING,)))}
    always = {"monitoring": {"monitor": "always", "rules": "never"}}
    asked = {one["kind"] for one in render(always)}
    assert "PodMonitor" in asked
    assert "PrometheusRule" not in asked


@pytest.mark.parametrize("mode", MODES)
def test_pods_run_without_rights_and_write_only_where_they_must(mode: str) -> None:
    found = render(MODES[mode])
    for pod in pod_templates(found):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in spec["containers"]:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert one["resources"]["requests"]
            assert "Ascend" not in repr(one["resources"]), "the control plane takes no NPU"
    kinds = {one["kind"] for one in found}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize("mode", ["rayCluster", "deployment"])
@pytest.mark.parametrize("kube", KUBES)
def test_the_service_leads_to_the_pods_that_say_they_lead(mode: str, kube: str) -> None:
    found = render(MODES[mode], Target(kube=kube))
    service = named(found, "Service", "eplb")
    chosen = [
        pod
        for pod in pod_templates(found)
        if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ]
    (pod,) = chosen
    (container,) = pod["spec"]["containers"]
    probe = container["readinessProbe"]
    if kube == "1.20.2":
        assert probe["exec"]["command"][:2] == ["eplb-probe", "leads"]
    else:
        assert probe["grpc"] == {"port": 50051}, "the whole server's health: serving means leading"
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {p["name"]: p["targetPort"] for p in service["spec"]["ports"]} == ports


def test_a_probe_that_may_kill_asks_whether_it_lives_not_whether_it_leads() -> None:
    (new,) = containers(of_kind(render(MODES["deployment"]), "Deployment"))
    (old,) = containers(of_kind(render(MODES["deployment"], Target(kube="1.20.2")), "Deployment"))
    for probe in ("livenessProbe", "startupProbe"):
        assert new[probe]["grpc"] == {"port": 50051, "service": "eplb.alive"}
        assert old[probe]["exec"]["command"][1] == "lives"


def test_the_ray_head_is_closed_and_holds_no_actor() -> None:
    found = render({})
    (cluster,) = of_kind(found, "RayCluster")
    head = cluster["spec"]["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0", "dashboard-host": "127.0.0.1"}
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    policy = named(found, "NetworkPolicy", "eplb-ray-head")
    labels = head["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    let_in = [
        (peer["podSelector"]["matchLabels"]["eplb.io/component"], rule.get("ports"))
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
    ]
    assert let_in == [("controller", None), ("keeper", [{"port": 10001, "protocol": "TCP"}])]


def test_an_existing_cluster_is_described_or_refused_with_what_is_missing() -> None:
    done = template("4", {"mode": "existingRay"})
    assert done.code != 0
    assert "ray.existing.podLabels is needed with mode existingRay" in done.complaint
    labels = {"mode": "existingRay", "ray": {"existing": {"podLabels": {"a": "b"}}}}
    assert "ray.existing.address is needed" in template("4", labels).complaint
    without = merged(MODES["existingRay"], {"ray": {"auth": {"existingSecret": ""}}})
    assert "ray.auth.existingSecret is needed" in template("4", without).complaint


def test_notes_say_what_to_do_next() -> None:
    for major in MAJORS:
        done = run(
            major, "install", "eplb", str(CHART), "--dry-run=client", "-o", "json", values={}
        )
        if done.code:  # helm 3 asks for a cluster even so on some machines
            assert "unreachable" in done.complaint, done.complaint
            continue
        assert "eplb.io/agent" in done.text
        assert "helm -n" in done.text


def test_notes_of_a_chart_with_tls_say_how_eplbctl_is_let_in() -> None:
    words = "--ca ca.crt --certificate operator.crt --key operator.key --server-name eplb.moe.svc"
    tls: Json = {"tls": {"existingSecret": "own"}}
    for values, is_locked in (({}, False), (tls, True)):
        install = ("install", "eplb", str(CHART), "-n", "moe", "--dry-run=client", "-o", "json")
        done = run("4", *install, values=values)
        assert done.code == 0, done.complaint
        notes = json.loads(done.text)["info"]["notes"]
        assert (f'keys="{words}"' in notes) == is_locked
        assert ("eplbctl --endpoint 127.0.0.1:50051 $keys status" in notes) == is_locked
        assert ("eplbctl --endpoint 127.0.0.1:50051 status" in notes) != is_locked


def test_a_package_carries_the_rules_and_dashboards(tmp_path: Any) -> None:
    for major in MAJORS:
        done = run(major, "package", str(CHART), "--destination", str(tmp_path / major))
        assert done.code == 0, done.complaint
        (package,) = (tmp_path / major).glob("eplb-*.tgz")
        packed = run(major, "template", "eplb", str(package), values={})
        there = run(major, "template", "eplb", str(CHART), values={})
        assert objects(packed.text) == objects(there.text)


def test_every_rule_and_dashboard_arrives_as_it_is() -> None:
    found = render({}, Target(apis=(MONITORING,)))
    rules = sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yaml"))
    made = [one["spec"] for one in of_kind(found, "PrometheusRule")]
    assert made == [yaml.safe_load(path.read_text()) for path in rules]
    dashboards = {p.name: p.read_text() for p in (ROOT / "deploy" / "grafana").glob("*.json")}
    maps = [one["data"] for one in of_kind(found, "ConfigMap") if "dashboard" in repr(one)]
    assert {name: text for data in maps for name, text in data.items()} == dashboards
