"""Ranks are numbered within their group; the group's ranks may have other numbers in the world."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from eplb_service.protocol.messages import DropReason
from eplb_service.protocol.rank_state import RaiseHalt, RoundDone, RoundFailed
from tests.agent.fakes import INCARNATION, NEVER, NEW, OLD
from tests.agent.scripts import Spent, order_of, waves_between
from tests.agent.test_movers import FakeMemory, wait_for
from tests.runtime.ranks import run_ranks
from worker_agent.adapters.chunked_mover import ChunkedMover
from worker_agent.adapters.memory import DigestBook
from worker_agent.adapters.mover import TorchMover
from worker_agent.adapters.promises import PromiseMover
from worker_agent.ports.weights import WeightsEvent

pytestmark = [pytest.mark.processes, pytest.mark.slow]

WORLD = [2, 3]
"""The group's ranks, of four."""
COMES = {0: 2, 1: 1}
"""The expert that each rank of the group receives."""
NOTHING: tuple[str, list[int]] = ("", [])


@dataclass(slots=True, eq=False)
class Rig:
    """One rank of the group, at its first round."""

    mover: TorchMover
    memory: FakeMemory
    book: DigestBook

    def begin(self) -> WeightsEvent:
        """Carry out the round; return the first that came of it."""
        self.mover.start([(0, 0), (0, 1), (1, 0)])
        (wave,) = waves_between(OLD, NEW, staging_rows=8)
        spent = Spent(wave, base_epoch=0, epoch=5, expires_at_step=NEVER)
        own = order_of(spent, rank=self.mover.rank, incarnation=INCARNATION)
        self.mover.begin_round(own, 1)
        return wait_for(self.mover.poll)


def rigged(rank: int, kind: type[TorchMover], *, deadline_s: float = 30.0) -> Rig | None:
    """Join the group as far as this rank is in it."""
    late = timedelta(seconds=deadline_s)
    group = dist.new_group(WORLD, late, "gloo")  # pyright: ignore[reportUnknownMemberType]
    if rank not in WORLD:
        return None
    assert isinstance(group, dist.ProcessGroup)
    own = dist.get_rank(group)
    memory, book = FakeMemory(own), DigestBook()
    return Rig(kind(memory, book, OLD.layout, rank=own, group=group), memory, book)


def move(rank: int, kind: type[TorchMover]) -> tuple[str, list[int]]:
    """Carry out one round; say what came of it."""
    rig = rigged(rank, kind)
    if rig is None:
        return NOTHING
    event = rig.begin()
    assert isinstance(event, RoundDone), event
    rig.mover.close(5.0)
    rig.book.install(0, 0, 0)
    return rig.book.slot(0, 0).hex(), rig.memory.staging(0)["w"].numpy().tolist()


def move_beside_the_dead(rank: int, kind: type[TorchMover]) -> str:
    """Carry out one round with a peer that has joined the group and is gone; say why it failed."""
    rig = rigged(rank, kind, deadline_s=2.0)
    if rig is None or rig.mover.rank == 1:
        return ""
    halt = rig.begin()
    failed = wait_for(rig.mover.poll)
    rig.mover.close(5.0)
    assert isinstance(halt, RaiseHalt), halt
    assert isinstance(failed, RoundFailed), failed
    assert (failed.reason, failed.text) == (DropReason.TRANSFER_FAILED, halt.reason)
    return failed.text


@pytest.mark.parametrize("kind", [TorchMover, PromiseMover])
def test_an_order_between_local_ranks_is_carried_out_between_those_of_the_group(
    kind: type[TorchMover],
) -> None:
    """Case F33: the group is ranks 2 and 3; what its rank 0 sends to its rank 1 comes to rank 3."""
    told = run_ranks(move, kind, num_ranks=4, deadline_s=120)
    assert told[:2] == [NOTHING, NOTHING]
    for own, (digest, row) in enumerate(told[2:]):
        expert = torch.tensor([0, COMES[own]])
        assert digest == FakeMemory(0).digest({"w": expert}).hex()
        assert row == (expert.numpy().tolist() if kind is TorchMover else [0, 0])


@pytest.mark.parametrize("kind", [TorchMover, ChunkedMover])
def test_f18_a_round_that_fails_names_the_peer_that_it_failed_with(kind: type[TorchMover]) -> None:
    told = run_ranks(move_beside_the_dead, kind, num_ranks=4, deadline_s=120)
    assert [bool(text) for text in told] == [False, False, True, False]
    assert "rank 0 could not complete round 1 of epoch 5 with rank 1 (" in told[2]
