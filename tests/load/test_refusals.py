"""A report that cannot be believed is refused with a reason, and the last good one is kept."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from eplb_service.domain.errors import InvalidReport
from eplb_service.domain.ids import Digest, Epoch
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.report import LoadReport, SentCounts
from eplb_service.load.windows import LoadWindows
from tests.load.reports import (
    FOUR,
    SLOTS,
    TERMS,
    at_reset,
    fleet,
    group_of,
    refused,
    report,
    served_under,
    started,
    steps,
)

Change = Callable[[LoadReport], LoadReport]


def with_sent(layer: int, expert: int, tokens: int = 5) -> Change:
    sent = SentCounts(
        np.array([layer], dtype=np.int32),
        np.array([expert], dtype=np.int32),
        np.array([tokens], dtype=np.int64),
    )
    return lambda made: replace(made, sent=sent)


REFUSALS: list[tuple[str, Change, str]] = [
    ("foreign_epoch", lambda r: served_under(r, Epoch(9)), "under epoch 9, but epoch 4"),
    (
        "foreign_placement",
        lambda r: replace(r, under=replace(r.under, placement=Digest(3))),
        "placement",
    ),
    ("shape", lambda r: replace(r, received=np.zeros((1, 3), np.int64)), "[1, 3]"),
    ("shape", lambda r: replace(r, received=np.zeros((2, 2), np.int64)), "[2, 2]"),
    ("shape", lambda r: replace(r, sent_total=np.zeros(2, np.int64)), "[2]"),
    ("negative", lambda r: replace(r, received=np.array([[9, -2]])), "layer 0 slot 1: -2"),
    ("negative", lambda r: replace(r, sent_total=np.array([-1])), "layer 0: -1"),
    ("nan", lambda r: replace(r, received=np.array([[1, np.nan]])), "layer 0 slot 1: nan"),
    ("nan", lambda r: replace(r, received=np.array([[np.inf, 1]])), "layer 0 slot 0: inf"),
    ("dtype", lambda r: replace(r, received=np.array([[1.0, 2.0]])), "float64"),
    ("dtype", lambda r: replace(r, received=np.array([[1, 2]], np.int32)), "int32"),
    ("misaligned", lambda r: replace(r, step=65), "step 65; expected a multiple of 10"),
    ("duplicate", lambda r: replace(r, step=40), "step 40 twice"),
    ("stale", lambda r: replace(r, step=30), "step 30 of reset 0 after step 40"),
    ("backwards", lambda r: replace(r, received=np.array([[0, 99]])), "layer 0 slot 0"),
    ("sent_total", lambda r: replace(r, sent_total=np.array([3])), "rank 1 layer 0: 3"),
    ("sent_total", lambda r: replace(r, steps=steps(tokens=7)), "expected 7"),
    ("unknown_expert", with_sent(0, 7), "expert 7 of layer 0"),
    ("unknown_expert", with_sent(1, 0), "expert 0 of layer 1"),
    ("negative", with_sent(0, 0, -5), "-5"),
]


@pytest.mark.parametrize(("reason", "change", "says"), REFUSALS)
def test_a_report_that_cannot_be_believed_is_refused_and_the_last_one_kept(
    reason: str, change: Change, says: str
) -> None:
    ranks = started()
    before = ranks.windows.window()
    text = refused(reason, change(ranks.report(1, 60)), ranks.windows)
    assert "rank 1" in text
    assert says in text
    assert (ranks.windows.window().slot_tokens == before.slot_tokens).all()
    assert ranks.windows.last_step(1) == 40
    ranks.cut(60)
    assert ranks.windows.window().num_steps == 40


def test_a_report_of_an_earlier_counting_is_stale() -> None:
    ranks = fleet(FOUR, SLOTS)
    ranks.windows.add(at_reset(2, ranks.report(1, 20)), 1)
    late = at_reset(1, ranks.report(1, 40))
    assert "step 40 of reset 1 after step 20 of reset 2" in refused("stale", late, ranks.windows)


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_the_group_is_refused(rank: int) -> None:
    ranks = started()
    assert "expected 0 to 3" in refused("unknown_rank", ranks.report(1, 60), ranks.windows, rank)


def test_tokens_in_a_slot_declared_empty_are_refused() -> None:
    placement = placement_from_ranks([[[0, 1], [2, -1]]], num_experts=3)
    windows = LoadWindows(group_of(placement), TERMS)
    made = report([[1, 4]], windows.group, step=20)
    assert "slot 1 is declared empty" in refused("empty_slot", made, windows)


def test_tokens_lost_between_sender_and_receiver_refuse_their_interval_only() -> None:
    ranks = started()
    for rank in range(3):
        ranks.windows.add(ranks.report(rank, 60), rank)
    lost = replace(ranks.report(3, 60), received=ranks.report(3, 60).received - [[0, 5]])
    text = refused("conservation", lost, ranks.windows, 3)
    assert "layer 0: ranks 0 to 3 sent 32 token copies and received 27" in text
    assert ranks.windows.window().last_step == 40
    ranks.slots = np.array([[3, 1, 2, 2, 4, 0, 1, 3]])
    for step in (80, 100):
        for rank in range(4):
            made = ranks.report(rank, step)
            shift = [[0, 5]] if rank == 3 else [[0, 0]]
            ranks.windows.add(replace(made, received=made.received - shift), rank)
    window = ranks.windows.window()
    assert (window.first_step, window.last_step) == (60, 100)


def test_a_replicated_expert_must_get_what_was_sent_to_it() -> None:
    ranks = fleet(FOUR, SLOTS)

    def cut(step: int, told: int) -> None:
        for rank in range(4):
            made = with_sent(0, 0, told if rank == 0 else 0)(ranks.report(rank, step))
            ranks.windows.add(made, rank)

    cut(20, 12)
    cut(40, 24)
    with pytest.raises(InvalidReport, match=r"expert 0: 11 copies sent, 12 .* ranks \[0, 3\]"):
        cut(60, 35)
