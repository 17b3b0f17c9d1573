"""Ranks are numbered within their group; the group's ranks may have other numbers in the world."""

import pytest
import torch
import torch.distributed as dist

from eplb_service.protocol.rank_state import RoundDone
from tests.agent.fakes import INCARNATION, NEVER, NEW, OLD
from tests.agent.scripts import Spent, order_of, waves_between
from tests.agent.test_movers import FakeMemory, wait_for
from tests.runtime.ranks import run_ranks
from worker_agent.adapters.memory import DigestBook
from worker_agent.adapters.mover import TorchMover
from worker_agent.adapters.promises import PromiseMover

pytestmark = [pytest.mark.processes, pytest.mark.slow]

WORLD = [2, 3]
"""The group's ranks, of four."""
COMES = {0: 2, 1: 1}
"""The expert that each rank of the group receives."""
NOTHING: tuple[str, list[int]] = ("", [])


def move(rank: int, kind: type[TorchMover]) -> tuple[str, list[int]]:
    """Carry out one round as far as this rank is in the group; say what came of it."""
    group = dist.new_group(WORLD, backend="gloo")  # pyright: ignore[reportUnknownMemberType]
    if rank not in WORLD:
        return NOTHING
    assert isinstance(group, dist.ProcessGroup)
    own = dist.get_rank(group)
    memory, book = FakeMemory(own), DigestBook()
    mover = kind(memory, book, OLD.layout, rank=own, group=group)
    filled = [(0, 0), (0, 1), (1, 0)]
    mover.start(filled)
    (wave,) = waves_between(OLD, NEW, staging_rows=8)
    spent = Spent(wave, base_epoch=0, epoch=5, expires_at_step=NEVER)
    mover.begin_round(order_of(spent, rank=own, incarnation=INCARNATION), 1)
    event = wait_for(mover.poll)
    assert isinstance(event, RoundDone), event
    mover.close(5.0)
    book.install(0, 0, 0)
    return book.slot(0, 0).hex(), memory.staging(0)["w"].numpy().tolist()


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
