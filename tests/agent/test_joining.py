"""A group starts whole: all ranks load the same, or none runs a step."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import numpy as np
import pytest

from eplb_service.domain.errors import AttachRefused
from eplb_service.domain.ids import Digest, Epoch, Generation
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.shares import Ownership, Shares, even_shares
from eplb_service.protocol.messages import Welcome
from tests.agent.fakes import INCARNATION, NEW, OLD, FakeEngine, served_name
from tests.agent.scripts import own_shares
from worker_agent.agent.joining import (
    Serving,
    gather,
    gather_columns,
    initial_serving,
    load_together,
    meet,
    offer_of,
    require_equal_start,
)
from worker_agent.ports.group import GroupPort

T = TypeVar("T")
PATIENCE_S = 10.0


class Board:
    """Two ranks, as threads, that meet."""

    def __init__(self) -> None:
        self.barrier = Barrier(2)
        self.said: list[Sequence[int]] = [(), ()]


class ThreadGroup:
    """Meets GroupPort."""

    num_ranks = 2

    def __init__(self, board: Board, rank: int) -> None:
        self._board = board
        self.rank = rank

    def agree(self, vector: Sequence[int]) -> tuple[int, ...]:
        self._board.said[self.rank] = vector
        self._board.barrier.wait(PATIENCE_S)
        minima = tuple(min(pair) for pair in zip(*self._board.said, strict=True))
        self._board.barrier.wait(PATIENCE_S)
        return minima


def on_both(work: Callable[[GroupPort], T]) -> list[T]:
    board = Board()
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, ThreadGroup(board, rank)) for rank in range(2)]
        return [future.result(PATIENCE_S) for future in futures]


def welcome(placement: Placement, epoch: int, shares: Shares | None = None) -> Welcome:
    return Welcome(
        generation=Generation(1),
        incarnation=INCARNATION,
        epoch=Epoch(epoch),
        placement=placement,
        shares=shares or even_shares(placement, Ownership.OWN),
        report_every_steps=10,
        sent_every_reports=1,
    )


def table_of(placement: Placement, rank: int) -> Serving:
    table = even_shares(placement, Ownership.OWN).table_of(rank)
    return Serving(served_name(placement), placement, table)


def start(welcomes: Sequence[Welcome | None]) -> list[tuple[Serving, list[str]]]:
    """Both ranks join, each with the Welcome it got."""

    def join(group: GroupPort) -> tuple[Serving, list[str]]:
        engine, initial = FakeEngine(), table_of(OLD, group.rank)
        offer = offer_of(welcomes[group.rank], initial, rank=group.rank, staging_rows=2)
        serving = load_together(group, engine, initial, offer)
        require_equal_start(group, Digest(7), serving.name)
        return serving, engine.log

    return on_both(join)


def test_every_rank_learns_what_every_rank_says() -> None:
    said = on_both(lambda group: gather(group, (group.rank, -5 - group.rank)))
    assert said == [[(0, -5), (1, -6)]] * 2


def test_the_whole_placement_is_put_together_from_the_ranks_columns() -> None:
    def look(group: GroupPort) -> list[list[int]]:
        own = OLD.phy2log[:, OLD.layout.slots_of(group.rank)].astype(np.int32)
        base = OLD.layout.base(group.rank)
        return gather_columns(group, own, num_columns=4, base=base).tolist()

    assert on_both(look) == [OLD.phy2log.tolist()] * 2


def test_the_initial_placement_has_one_name_on_all_ranks() -> None:
    def named(group: GroupPort) -> Serving:
        return initial_serving(group, OLD, table_of(OLD, group.rank).table)

    assert [serving.name for serving in on_both(named)] == [served_name(OLD)] * 2


def test_what_all_ranks_are_told_is_loaded_under_its_epoch() -> None:
    for rank, (serving, log) in enumerate(start([welcome(NEW, 9), welcome(NEW, 9)])):
        assert serving.name == served_name(NEW, 9)
        assert serving.table.tolist() == table_of(NEW, rank).table.tolist()
        assert log == [f"load {NEW.phy2log.tolist()}"]


def test_each_rank_may_be_told_its_own_table_alone() -> None:
    welcomes = [welcome(NEW, 9, own_shares(NEW, rank)) for rank in range(2)]
    for rank, (serving, _) in enumerate(start(welcomes)):
        assert serving.name == served_name(NEW, 9)
        assert serving.table.tolist() == table_of(NEW, rank).table.tolist()


@pytest.mark.parametrize(
    "welcomes",
    [
        (None, None),
        (welcome(NEW, 9), None),
        (welcome(NEW, 9), welcome(OLD, 9)),
        (welcome(NEW, 9), welcome(NEW, 8)),
        (welcome(OLD, 0), welcome(OLD, 0)),
    ],
    ids=["no controller", "one was late", "two placements", "two epochs", "the initial one"],
)
def test_anything_but_unanimity_leaves_all_at_the_initial_placement(
    welcomes: Sequence[Welcome | None],
) -> None:
    for serving, log in start(welcomes):
        assert serving.name == served_name(OLD)
        assert log == []


BAD_SHARES = Shares(np.zeros((2, 2, 3, 1), dtype=np.int32), Ownership.OWN)
UNSOUND = placement_from_ranks([[[0, 1], [1, 0]], [[0, 1], [2, -1]]], num_experts=3)
MISFIT = placement_from_ranks([[[0, 1], [2, 0]]], num_experts=3)


@pytest.mark.parametrize(
    "bad",
    [
        welcome(NEW, 9, BAD_SHARES),
        welcome(UNSOUND, 9, even_shares(OLD, Ownership.OWN)),
        welcome(MISFIT, 9),
    ],
    ids=["shares", "unsound", "misfit"],
)
def test_a_welcome_that_does_not_fit_is_as_good_as_none(bad: Welcome) -> None:
    assert offer_of(bad, table_of(OLD, 0), rank=0, staging_rows=2) is None
    assert [log for _, log in start([bad, bad])] == [[], []]


def test_a_rank_without_staging_is_offered_only_what_its_slots_hold() -> None:
    """Else it would fail to load at every start, for as long as the controller remembers."""
    for placement, is_offered in ((NEW, False), (OLD, True)):
        told = welcome(placement, 9)
        offer = offer_of(told, table_of(OLD, 0), rank=0, staging_rows=0)
        assert (offer is not None) is is_offered


def test_ranks_of_another_model_are_named_before_anything_else_is_told() -> None:
    def come(group: GroupPort) -> str:
        with pytest.raises(AttachRefused) as refused:
            meet(group, Digest(7 + group.rank), started_at_ms=5)
        return str(refused.value)

    assert "ranks [1] of 2" in on_both(come)[0]


def test_the_incarnation_is_when_rank_0_started() -> None:
    told = on_both(lambda group: meet(group, Digest(7), started_at_ms=50 - group.rank))
    assert told == [50, 50]


def test_ranks_that_differ_do_not_start() -> None:
    def attach(group: GroupPort) -> str:
        with pytest.raises(AttachRefused) as refused:
            require_equal_start(group, Digest(7 + group.rank), served_name(OLD))
        return str(refused.value)

    assert "rank 1" in on_both(attach)[0]
