"""The controller as a Ray actor: found again, restarted, and never alive for show."""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
import ray

from eplb_service.domain.errors import BindFailed
from eplb_service.host.assembly import Addresses
from eplb_service.host.ray_cluster import Place, end, start
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import ServerSettings, StoreSettings
from tests.host.operators import Operator
from tests.host.processes import await_so, free_port, is_alive

pytestmark = [
    pytest.mark.ray,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

WAIT_S = 60.0


class Actors:
    """Controller actors of one test; `end` ends them all."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self._namespace = namespace
        self._folder = folder
        self._names: set[str] = set()

    def settings(self, port: int) -> Settings:
        """Settings that differ only in the port, so that all share one store."""
        return Settings(
            server=ServerSettings(port=port, metrics_port=0),
            store=StoreSettings(url=f"sqlite:///{self._folder / 'eplb.db'}"),
        )

    def start(self, name: str, port: int) -> Addresses:
        """Create the actor or find it, and wait until it leads."""
        self._names.add(name)
        return start(self.settings(port), self.place(name), wait_s=WAIT_S)

    def place(self, name: str) -> Place:
        return Place(name, self._namespace)

    def pid(self, name: str) -> int | None:
        """Process id of the actor, or None where there is no such actor."""
        try:
            actor = ray.get_actor(name, namespace=self._namespace)
        except ValueError:
            return None
        return cast("int", ray.get(actor.pid.remote(), timeout=WAIT_S))

    def end(self) -> None:
        for name in self._names:
            end(self.place(name))


@pytest.fixture
def actors(local_ray: str, tmp_path: Path) -> Iterator[Actors]:
    found = Actors(local_ray, tmp_path)
    yield found
    found.end()


def a_name() -> str:
    return f"controller-{uuid4().hex[:8]}"


async def test_a_killed_actor_comes_back_on_its_port_with_what_was_on_record(
    actors: Actors,
) -> None:
    name, port = a_name(), free_port()
    found = actors.start(name, port)
    endpoint, pid = found.endpoint, found.pid
    assert endpoint == f"127.0.0.1:{port}"
    assert actors.start(name, port) == found, "found again, and not made anew"
    assert actors.pid(name) == pid
    async with Operator(endpoint) as operator:
        await operator.register_rank()
        await operator.freeze(3600.0)
        before = await operator.status()
        os.kill(pid, signal.SIGKILL)
        after = await operator.status()
        assert after.generation == before.generation + 1
        assert after.epoch == before.epoch
        assert after.operation.freeze == before.operation.freeze
    assert actors.pid(name) != pid


def test_a_taken_port_is_a_loud_failure_and_no_actor_is_left(actors: Actors) -> None:
    name = a_name()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = int(other.getsockname()[1])
        with pytest.raises(BindFailed, match=f"127.0.0.1:{port} cannot be taken"):
            actors.start(name, port)
        await_so(lambda: actors.pid(name) is None, within_s=WAIT_S, what="the actor is gone")
    assert actors.start(name, port).endpoint == f"127.0.0.1:{port}", "free now, and it starts"


async def test_a_second_controller_on_the_same_store_ends_the_first_for_good(
    actors: Actors,
) -> None:
    first, second = a_name(), a_name()
    ports = free_port(), free_port()
    found = actors.start(first, ports[0])
    async with Operator(found.endpoint) as operator:
        await operator.register_rank()
        later = actors.start(second, ports[1]).endpoint
        await operator.require_fenced()
    await_so(lambda: not is_alive(found.pid), within_s=WAIT_S, what="the fenced process has ended")
    await_so(lambda: actors.pid(first) is None, within_s=WAIT_S, what="and is not started anew")
    async with Operator(later) as operator:
        assert (await operator.status()).generation == 2
