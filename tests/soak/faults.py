"""The faults of a soak: each strikes in the middle of a wave, and is mended."""

import os
import signal
import sqlite3
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import ClassVar

from tests.host.processes import await_so, descendants, is_alive, named
from tests.soak.house import HOSTS, House, run
from tests.system.group import RankFailed
from tests.system.world import HELD_RANK

STOPPED_S = 3.0
LOOK_S = 0.05
END_S = 30.0
SLOW_S = 0.3
CUT_OFF = (0, HELD_RANK)
"""The ranks of a partition's smaller side."""


class Fault:
    """Something that breaks, and how it is mended; one object for one time."""

    name: ClassVar[str]
    stops_steps: ClassVar[bool] = False
    """Whether the ranks themselves stand still, so that steps cannot go on."""
    is_a_blow: ClassVar[bool] = False
    """Whether recovery begins at once, and not when something is mended."""

    def __init__(self, house: House) -> None:
        self.house = house

    @abstractmethod
    def strike(self) -> None:
        """Break it."""

    @abstractmethod
    def mend(self) -> None:
        """End it."""


class RayKilled(Fault):
    """Kill -9 of the controller and of the whole Ray under it; started again."""

    name = "all of Ray killed"

    def strike(self) -> None:
        self.house.world.controller.kill()

    def mend(self) -> None:
        self.house.world.controller.start()


class GcsLost(RayKilled):
    """Ray's head loses its memory under a controller that lives; then Ray is started again."""

    name = "GCS lost and back"

    def strike(self) -> None:
        for pid in members(self.house, "gcs_server"):
            os.kill(pid, signal.SIGKILL)

    def mend(self) -> None:
        self.house.world.controller.kill()
        self.house.world.controller.start()


class ActorKilled(Fault):
    """Kill -9 of the controller's actor; Ray starts it again by itself."""

    name = "controller killed"
    is_a_blow = True

    def strike(self) -> None:
        (self._pid,) = members(self.house, "ControllerActor")
        os.kill(self._pid, signal.SIGKILL)

    def mend(self) -> None:
        await_so(lambda: not is_alive(self._pid), within_s=END_S, what="the old actor is gone")


class ActorStopped(Fault):
    """SIGSTOP of the controller's actor, for a while."""

    name = "controller stopped"

    def strike(self) -> None:
        (self._pid,) = members(self.house, "ControllerActor")
        os.kill(self._pid, signal.SIGSTOP)

    def mend(self) -> None:
        os.kill(self._pid, signal.SIGCONT)


class Upgraded(Fault):
    """A second controller, on a Ray of its own, takes over while the first one leads."""

    name = "controller upgraded in mid-migration"

    def strike(self) -> None:
        self._former = self.house.world.controller
        successor = self.house.successor()
        successor.start()
        self.house.world.lead_to(successor)

    def mend(self) -> None:
        self._former.kill()


class RankStopped(Fault):
    """SIGSTOP of one rank, for a while: no collective ends, so the group stands still."""

    name = "rank stopped"
    stops_steps = True

    def strike(self) -> None:
        def stop(pids: Sequence[int]) -> None:
            os.kill(pids[0], signal.SIGSTOP)
            sleep(STOPPED_S)
            os.kill(pids[0], signal.SIGCONT)

        self.house.world.ranks.serve_while(100, stop)

    def mend(self) -> None:
        """The rank goes on already."""


class RankKilled(Fault):
    """SIGKILL of one rank: its group dies with it, and the engine is started again."""

    name = "rank killed"
    stops_steps = True

    def strike(self) -> None:
        with suppress(RankFailed):
            self.house.world.ranks.serve_while(100, lambda pids: os.kill(pids[1], signal.SIGKILL))
            raise AssertionError("the group served on without one of its ranks")

    def mend(self) -> None:
        self.house.replace_group()


class PacketsDropped(Fault):
    """The kernel drops every packet of some ranks: a partition that nobody is told of."""

    name = "some ranks partitioned"

    def strike(self) -> None:
        for rank in CUT_OFF:
            run("ip", "route", "add", "blackhole", f"{HOSTS[rank]}/32", "table", "local")

    def mend(self) -> None:
        for rank in CUT_OFF:
            run("ip", "route", "del", "blackhole", f"{HOSTS[rank]}/32", "table", "local")


class LinksSwallow(Fault):
    """Every way to the controller takes all and gives nothing on."""

    name = "links black-holed"

    def strike(self) -> None:
        for proxy in self.house.world.proxies:
            proxy.swallow()

    def mend(self) -> None:
        for proxy in self.house.world.proxies:
            proxy.forward()


class LinksSlow(LinksSwallow):
    """Every piece of every stream takes a third of a second."""

    name = "links slow"

    def strike(self) -> None:
        for proxy in self.house.world.proxies:
            proxy.delay(SLOW_S)


class LinksCut(LinksSwallow):
    """Streams of some ranks end, and no new one opens."""

    name = "links of some ranks cut"

    def strike(self) -> None:
        for rank in CUT_OFF:
            self.house.world.proxies[rank].cut()


class StoreLocked(Fault):
    """Another process holds the store's write lock."""

    name = "store locked"

    def strike(self) -> None:
        self._file = sqlite3.connect(
            self.house.world.controller.store, isolation_level=None, timeout=END_S
        )
        self._file.execute("BEGIN IMMEDIATE")

    def mend(self) -> None:
        self._file.execute("ROLLBACK")
        self._file.close()


class DiskFull(Fault):
    """Not one block is left on the store's disk."""

    name = "disk full"

    def strike(self) -> None:
        self._ballast = self.house.disk / "ballast"
        fill(self._ballast)

    def mend(self) -> None:
        self._ballast.unlink()


FAULTS: tuple[type[Fault], ...] = (
    RayKilled,
    GcsLost,
    ActorKilled,
    ActorStopped,
    Upgraded,
    RankStopped,
    RankKilled,
    PacketsDropped,
    LinksSwallow,
    LinksSlow,
    LinksCut,
    StoreLocked,
    DiskFull,
)


def fill(file: Path) -> None:
    """Write until the disk takes nothing more."""
    with file.open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def members(house: House, name: str) -> list[int]:
    """Pids of the controller's family that go by a name."""
    return members_of(house.world.controller.pid, name)


def members_of(pid: int, name: str) -> list[int]:
    """Pids of a process's descendants that go by a name."""
    return [one for one in descendants(pid) if name in named(one) and is_alive(one)]
