"""Weights go from device to device in chunks, over a group that knows no tags. Here: over gloo."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist

from eplb_service.domain.shares import Ownership, even_shares
from moe_runtime.backends.npu_mc2 import Communicator
from moe_runtime.contracts.npu_errors import CommunicatorShared
from moe_runtime.runtime import (
    CPU,
    ExchangeMode,
    GroupPeers,
    MoeRuntime,
    SlotLayout,
    Start,
    SyntheticModel,
)
from moe_runtime.runtime.communicators import make_communicators
from moe_runtime.runtime.device import CpuDevice
from tests.agent.scripts import Script
from tests.agent.serving import Case, random_placement, served
from tests.agent.test_migration_is_byte_exact import migrate
from tests.runtime.ranks import run_ranks
from worker_agent.adapters.chunked_mover import ChunkedMover, DeviceLink
from worker_agent.adapters.torch_calls import new_group
from worker_agent.adapters.weights_thread import WeightsThread
from worker_agent.main import attach_over
from worker_agent.settings.settings import AgentSettings

HOST = torch.device("cpu")
CASES = (Case(2, 2, 3, 4), Case(2, 4, 8, 16))


class SmallChunks(ChunkedMover):
    """Cuts an expert in the middle of its tensors."""

    chunk_bytes = 100


class Linked(CpuDevice):
    """A device that moves weights itself."""

    group: ClassVar[dist.ProcessGroup | None] = None

    @property
    def moving(self) -> dist.ProcessGroup | None:
        return self.group


def move_over_the_device(rank: int, case: Case) -> list[str]:
    placement = random_placement(case, np.random.default_rng(1))
    layout = SlotLayout(placement.layout.slots_per_rank)
    table = even_shares(placement, Ownership.OWN).table_of(rank)
    kinds: list[str] = []
    start = WeightsThread.start

    def started(self: WeightsThread, filled: Sequence[tuple[int, int]]) -> None:
        kinds.append(type(self).__name__)
        start(self, filled)

    WeightsThread.start = started  # in this process of one test
    for device in (CPU, Linked()):
        Linked.group = new_group(None, timeout_s=30)
        held = placement.phy2log[:, placement.layout.slots_of(rank)]
        runtime = MoeRuntime(
            SyntheticModel(case.shape(), seed=1),
            Start(layout, held, table, 2, device),
            peers=GroupPeers(),
            mode=ExchangeMode.ALL_GATHER,
        )
        settings = AgentSettings(endpoint="script", wait_for_welcome_s=0)
        attach_over(runtime, Script(), settings=settings).close()
    return kinds


@pytest.mark.processes
@pytest.mark.slow
def test_an_agent_moves_weights_the_way_that_the_device_has_for_itself() -> None:
    for kinds in run_ranks(move_over_the_device, CASES[0], num_ranks=2, deadline_s=60):
        assert kinds == ["TorchMover", "ChunkedMover"]


def migrate_in_chunks(rank: int, cases: tuple[Case, ...]) -> int:
    done = 0
    for case in cases:
        draw = np.random.default_rng([case.layers, case.slots])
        old, new = (random_placement(case, draw) for _ in range(2))
        script = Script()
        with served(case, rank, old, script, mover=SmallChunks) as serving:
            done += migrate(serving, script, old, new)
    return done


@pytest.mark.processes
@pytest.mark.slow
def test_experts_cut_into_chunks_arrive_byte_for_byte_while_every_step_serves_right() -> None:
    one, other = run_ranks(migrate_in_chunks, CASES, num_ranks=2, deadline_s=90)
    assert one == other > 0


class Gloo:
    """Meets CommunicatorSource with groups of the host."""

    made: ClassVar[list[dist.ProcessGroup]] = []

    def make(self) -> dist.ProcessGroup:
        self.made.append(new_group(None, timeout_s=30))
        return self.made[-1]

    def named(self, group: dist.ProcessGroup) -> Communicator:
        return Communicator(f"g{self.made.index(group)}", dist.get_rank(group), 2)


class OneForAll(Gloo):
    """Gives the same one each time."""

    def make(self) -> dist.ProcessGroup:
        return self.made[0] if self.made else super().make()


def make_and_refuse(_rank: int, _: object) -> str:
    made = make_communicators(Gloo(), HOST)
    assert made.exchange is not made.moving
    assert made.mc2.name == "g1"
    try:
        make_communicators(OneForAll(), HOST)
    except CommunicatorShared as refused:
        return str(refused)
    return "nothing was refused"


@pytest.mark.processes
@pytest.mark.slow
def test_each_purpose_has_a_communicator_of_its_own_or_nothing_starts() -> None:
    said = run_ranks(make_and_refuse, None, num_ranks=2)
    assert all("theirs are called ['g0', 'g0', 'g0']" in text for text in said)


@dataclass
class Lane:
    """Notes when a thread works in it."""

    inside: bool = False
    entered: int = 0

    @contextmanager
    def __call__(self) -> Generator[None]:
        self.inside, self.entered = True, self.entered + 1
        yield
        self.inside = False


def move_in_a_lane(rank: int, case: Case) -> int:
    lane = Lane()

    class InLane(SmallChunks):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, **named)  # pyright: ignore[reportArgumentType]
            self._link = DeviceLink(self._link.group, HOST, lane)

        def _verify(self, row: int, sent: bytes) -> None:
            assert lane.inside, "what came is looked at where it came, not before it is there"
            super()._verify(row, sent)

    draw = np.random.default_rng(3)
    old, new = (random_placement(case, draw) for _ in range(2))
    script = Script()
    with served(case, rank, old, script, mover=InLane) as serving:
        migrate(serving, script, old, new)
    return lane.entered


@pytest.mark.processes
@pytest.mark.slow
def test_all_of_a_round_happens_in_the_lane_of_the_device() -> None:
    assert all(n > 0 for n in run_ranks(move_in_a_lane, CASES[0], num_ranks=2, deadline_s=60))
