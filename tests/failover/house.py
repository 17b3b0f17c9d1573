"""Two controllers over one store, one of which leads, and ranks that know both."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import grpc

from tests.system.controller import ControllerProcess, Operator, is_refused_by_a_standby
from tests.system.group import Group
from tests.system.rank import NUM_RANKS, PACE
from tests.system.world import HELD_RANK

LEADING = {"is_standby": True, "beat_s": 0.5, "takeover_s": 1.5}
TUNED = PACE.model_copy(
    update={"keepalive_s": 1.0, "keepalive_timeout_s": 1.0, "welcome_within_s": 1.5}
)
NUM_STEPS = 20
MOST_STEPS = 20_000


class House:
    """All of it; `close` ends every process, whatever happened.

    url    of a Redis server that is there already; empty: a file in `folder`
    """

    def __init__(self, folder: Path, url: str = "") -> None:
        store = folder / "eplb.db"
        more = {"store": {"url": url, "deadline_s": 2.0}} if url else {}
        self.controllers: list[ControllerProcess] = []
        for name in ("one", "other"):
            (folder / name).mkdir()
            controller = ControllerProcess(folder / name, store=store, leading=LEADING, more=more)
            self.controllers.append(controller)
        self.leader, self.standby = self.controllers
        self.group: Group | None = None
        try:
            self.leader.start()
            self.standby.launch()
            endpoints = ",".join(f"127.0.0.1:{one.port}" for one in self.controllers)
            self.ranks = self.group = Group([endpoints] * NUM_RANKS, TUNED)
        except BaseException:
            self.close()
            raise

    def fail_over(self, *, is_killed: bool) -> float:
        """End the leader in the middle of a wave's staging, or stop it.

        Returns the seconds until the other one leads and every rank is connected to it. Afterwards
        the former leader stands by.
        """
        former, follower = self.leader, self.standby
        generation = self._hold_wave()
        began_s = monotonic()
        os.kill(former.pid, signal.SIGKILL if is_killed else signal.SIGSTOP)
        operator = Operator(follower.port)
        try:
            self._serve_until(lambda: is_led(operator, generation + 1), "the other one leads")
            taken_s = monotonic() - began_s
            self.ranks.hold_rounds(HELD_RANK, is_on=False)
            self._serve_until(operator.is_calm, "the wave is over")
        finally:
            operator.close()
        if is_killed:
            former.kill()
            former.launch()
        else:
            os.kill(former.pid, signal.SIGCONT)
        self.leader, self.standby = follower, former
        self._settle_another()
        return taken_s

    def close(self) -> None:
        """End everything."""
        if self.group is not None:
            self.group.kill()
        for controller in self.controllers:
            controller.kill()

    def _hold_wave(self) -> int:
        """Bring a wave to the middle of its staging; returns the leader's generation."""
        operator = Operator(self.leader.port)
        try:
            self._serve_until(operator.is_calm, "calm")
            self.ranks.hold_rounds(HELD_RANK, is_on=True)
            operator.move()
            self._serve_until(
                lambda: "staged" in {rank.phase for rank in operator.status().ranks}, "staging"
            )
            return operator.status().generation
        finally:
            operator.close()

    def _settle_another(self) -> None:
        operator, epoch = Operator(self.leader.port), self.ranks.epoch
        try:
            operator.move()
            self._serve_until(operator.is_calm, "a fresh plan is over")
            assert operator.status().operation.running.phase == "done"
            assert operator.status().epoch > epoch
        finally:
            operator.close()

    def _serve_until(self, is_so: Callable[[], bool], what: str) -> None:
        self.ranks.serve_until(is_so, within_steps=MOST_STEPS, what=what)


def is_led(operator: Operator, generation: int) -> bool:
    """Whether a controller of this generation leads, with every rank connected to it.

    One that stands by has no status to tell, and has not taken over yet; whatever else goes wrong
    is raised.
    """
    try:
        status = operator.status()
    except grpc.RpcError as refused:
        if is_refused_by_a_standby(refused):
            return False
        raise
    return (
        status.generation == generation
        and len(status.ranks) == NUM_RANKS
        and all(rank.is_connected for rank in status.ranks)
    )
