"""An upgrade or rollback changes the control plane alone: no serving pod, and no spare NPU."""

import pytest
import yaml

from tests.architecture.sources import ROOT
from tests.deploy.helm import MODES, Target, named, pod_templates, render
from tests.deploy.trees import Json, merged

SERVING = ROOT / "tests" / "deploy" / "data" / "serving.yaml"
CHANGES: dict[str, Json] = {
    "a new image": {"image": {"tag": "0.2.0"}},
    "other settings": {"controller": {"settings": {"gates": {"min_gain": 0.2}}}},
    "another port": {"controller": {"port": 50061}},
    "more memory": {"controller": {"resources": {"requests": {"memory": "8Gi"}}}},
    "settings of agents": {"agents": {"env": {"EPLB_AGENT_AGREE_EVERY": "8"}}},
    "another Ray": {"ray": {"version": "2.61.0"}},
}


def serving() -> Json:
    """A serving deployment as docs/install.md joins it to the control plane."""
    return yaml.safe_load(SERVING.read_text())


def by_name(found: list[Json]) -> dict[tuple[str, str], Json]:
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def changed(before: list[Json], after: list[Json]) -> list[Json]:
    """What an upgrade would create, change or delete, as it is after and before."""
    old, new = by_name(before), by_name(after)
    names = [name for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
    return [tree[name] for name in names for tree in (old, new) if name in tree]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", MODES)
def test_the_diff_of_an_upgrade_holds_nothing_of_serving(mode: str, change: str) -> None:
    before, after = render(MODES[mode]), render(merged(MODES[mode], CHANGES[change]))
    diff = changed(before, after)
    assert diff or mode != "rayCluster", "the change shows"
    pods = serving()["spec"]["template"]
    for one in diff:
        assert one["kind"] not in ("StatefulSet", "LeaderWorkerSet", "DaemonSet")
        selector: Json = one.get("spec", {}).get("selector", {})
        labels: Json = selector.get("matchLabels", selector)
        if one["kind"] not in ("Service", "RayCluster"):
            assert not (labels and labels.items() <= pods["metadata"]["labels"].items()), one
        for pod in pod_templates([one]):
            assert "huawei.com/" not in repr(pod["spec"])
    for mine in pod_templates(diff):
        assert "eplb.io/agent" not in mine["metadata"].get("labels", {})


def test_what_serving_refers_to_keeps_its_name_through_every_change() -> None:
    (container,) = serving()["spec"]["template"]["spec"]["containers"]
    (source,) = container["envFrom"]
    for change in CHANGES.values():
        found = render(merged(MODES["rayCluster"], change))
        assert named(found, "ConfigMap", source["configMapRef"]["name"])


def test_a_rollback_is_the_same_manifests_again() -> None:
    assert changed(render({}), render({})) == []


def test_one_pod_at_a_time_holds_the_store() -> None:
    deployment = named(render(MODES["deployment"]), "Deployment", "eplb")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    cluster = named(render({}, Target()), "RayCluster", "eplb")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (1, 1)
    assert cluster["spec"]["upgradeStrategy"] == {"type": "Recreate"}, "never a second cluster"
