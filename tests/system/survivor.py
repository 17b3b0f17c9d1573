"""The process of a rank in a group that loses one, and carries on in the same process.

Files in a folder tell it what to do, and are looked at between two steps.
"""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import torch
import torch.distributed as dist
from torch import Tensor

from moe_runtime.contracts.torch_calls import new_group
from moe_runtime.exchange.peers import GroupPeers, Pending
from moe_runtime.runtime import (
    Checkpoint,
    DenseReference,
    ExchangeMode,
    MoeError,
    MoeRuntime,
    StepKind,
    SyntheticModel,
)
from moe_runtime.runtime.sources import Sourced
from tests.host.processes import await_so
from tests.system.faults import Faults, FaultyMover
from tests.system.group import TOLERANCE
from tests.system.rank import AGREE_EVERY, MODEL, PACE, PACE_S, SHAPE, batch_of, flat_start
from worker_agent.adapters.serving_on import serve_on
from worker_agent.adapters.torch_calls import group_of
from worker_agent.agent.hook import StepHook
from worker_agent.main import attach_over, street
from worker_agent.ports import engine
from worker_agent.ports.failures import GroupLost
from worker_agent.settings.settings import AgentSettings, DeploymentSettings

DEAD = 2
LIVING = (0, 1, 3)
LATE = 3
"""The rank whose mover keeps to itself what it has received, where a wave is to be held."""
MODE = ExchangeMode.ALL_TO_ALL
DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Cues:
    """Files by which a test tells all ranks something; they are empty."""

    folder: Path

    def give(self, word: str) -> None:
        """Tell it."""
        (self.folder / word).touch()

    def is_given(self, word: str) -> bool:
        """Whether it was told."""
        return (self.folder / word).exists()


@dataclass(frozen=True, slots=True)
class Plot:
    """What happens to the group."""

    endpoint: str
    cues: Cues
    """`hold`: rank 3 keeps what it has received, until `load`; `die`: rank 2 is killed in the
    middle of its next step; `load`: lost experts may be read; `stop`: the ranks that live leave,
    after one step."""


@dataclass(frozen=True, slots=True)
class Lived:
    """What a rank that lives saw."""

    steps_before: int
    steps_after: int
    wrong: tuple[int, ...]
    """Steps whose outputs were not those of the reference."""
    epochs: tuple[int, int]
    """Served at the death, and at the end."""


class _Dying(GroupPeers):
    exchanges_left = -1
    """Until it is killed; -1: it is not."""

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        if self.exchanges_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.exchanges_left -= self.exchanges_left > 0
        return super().start_all_to_all(rows, sent, received, what=what)


class _SlowCheckpoint(Checkpoint):
    """Reads nothing before it is told to."""

    def __init__(self, runtime: MoeRuntime, cues: Cues) -> None:
        super().__init__(runtime)
        self._cues = cues

    def find(self, layer: int, expert: int) -> Sourced | None:
        await_so(lambda: self._cues.is_given("load"), within_s=60.0, what="may read")
        return super().find(layer, expert)


class _Survivor:
    def __init__(self, rank: int, plot: Plot) -> None:
        self.rank, self.plot = rank, plot
        self.faults = Faults()
        self.peers = _Dying(new_group(), deadline_s=DEADLINE_S)
        self.runtime = MoeRuntime(
            SyntheticModel(SHAPE), flat_start(rank), peers=self.peers, mode=MODE
        )
        self.hook = self.attach(dist.group.WORLD)
        self.reference = DenseReference(self.runtime.model)
        self.num_steps = 0
        self.wrong: list[int] = []

    def attach(self, group: dist.ProcessGroup | None) -> StepHook:
        settings = AgentSettings(
            endpoint=self.plot.endpoint,
            deployment=DeploymentSettings(model=MODEL),
            agree_every=AGREE_EVERY,
            wait_for_welcome_s=30.0,
            group_timeout_s=30.0,
            pace=PACE,
        )
        mover = FaultyMover.with_faults(self.faults)
        return attach_over(
            self.runtime, street(settings), settings=settings, group=group, mover=mover
        )

    def serve_until(self, is_over: Callable[[], bool]) -> None:
        """Step until any rank finds it over; the ranks ask each other between two steps."""
        while not self.any_of(is_over()):
            cues = self.plot.cues
            is_held = cues.is_given("hold") and not cues.is_given("load")
            self.faults.holds_rounds = self.rank == LATE and is_held
            if self.rank == DEAD and cues.is_given("die") and self.peers.exchanges_left < 0:
                self.peers.exchanges_left = 4  # of a step's seven: in its first layer
            self.step()
            sleep(PACE_S)

    def any_of(self, is_so: bool) -> bool:  # noqa: FBT001  it is what is asked
        told = self.peers.all_gather(torch.tensor([is_so]), [1] * self.peers.size)
        return bool(told.any())

    def step(self) -> None:
        batch = batch_of(self.num_steps, self.rank)
        self.hook.before_step()
        y_TD = self.runtime.forward(batch)
        is_real = batch.step.kind is StepKind.REAL
        self.hook.after_step(engine.StepKind.REAL if is_real else engine.StepKind.DUMMY)
        if batch.x_TD.shape[0]:
            want_TD = self.reference.forward(batch.x_TD, batch.router)
            off_T = (y_TD - want_TD).abs().amax(dim=1) / want_TD.abs().amax(dim=1)
            if not float(off_T.max()) <= TOLERANCE:
                self.wrong.append(self.num_steps)
        self.num_steps += 1

    def serve_on(self) -> None:
        living = group_of(LIVING, timeout_s=30.0)
        self.peers = _Dying(living, deadline_s=DEADLINE_S)
        source = _SlowCheckpoint(self.runtime, self.plot.cues)
        self.runtime = serve_on(self.runtime, peers=self.peers, mode=MODE, source=source)
        self.hook.close()
        self.faults.end()
        self.hook = self.attach(living)


def live_through_a_death(rank: int, plot: Plot) -> Lived:
    """Run on every rank."""
    own = _Survivor(rank, plot)
    with suppress(MoeError, GroupLost):
        own.serve_until(lambda: False)
    before, epoch = own.num_steps, own.hook.state().epoch
    own.serve_on()
    own.serve_until(lambda: plot.cues.is_given("stop"))
    own.step()
    after = own.num_steps - before
    told = Lived(before, after, tuple(own.wrong), (epoch, own.hook.state().epoch))
    own.any_of(is_so=True)
    own.hook.close()
    return told
