"""A store that only one node reaches is refused where several may run the controller."""

import pytest

from eplb_service.domain.errors import InvalidSettings
from eplb_service.host import ray_cluster
from eplb_service.host.ray_cluster import Place, require_reachable
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import StoreSettings

NODES = [
    {"Alive": True, "Resources": {"CPU": 1.0, "eplb": 1.0}},
    {"Alive": True, "Resources": {"CPU": 1.0}},
    {"Alive": False, "Resources": {"eplb": 1.0}},
]


@pytest.fixture(autouse=True)
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that live, one of which offers `eplb`, as ray.nodes() tells them."""
    monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: NODES)


def settings(url: str) -> Settings:
    return Settings(store=StoreSettings(url=url))


def test_a_file_is_refused_where_two_nodes_may_run_the_controller() -> None:
    with pytest.raises(InvalidSettings, match=r"2 nodes may run .* redis://"):
        require_reachable(settings("sqlite:///var/lib/eplb.db"), Place("c", "eplb", ""))


@pytest.mark.parametrize(
    ("url", "resource"),
    [("redis://db:6379/0", ""), ("sqlite:///var/lib/eplb.db", "eplb")],
)
def test_a_server_or_one_node_alone_will_do(url: str, resource: str) -> None:
    require_reachable(settings(url), Place("c", "eplb", resource))
