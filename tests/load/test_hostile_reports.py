"""What one rank gets wrong is refused by name and never costs the others their window."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from eplb_service.domain.deployment import CountMeaning
from eplb_service.domain.ids import Epoch
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.report import LoadReport, Phase, SentCounts
from eplb_service.load.fold import heat_of, measured_imbalance
from eplb_service.load.windows import LoadWindows
from tests.load.reports import FOUR, SLOTS, TERMS, Fleet, fleet, group_of, refused, report, started

Change = Callable[[LoadReport], LoadReport]


def sent_of(layers: object, experts: object, tokens: Sequence[int]) -> SentCounts:
    return SentCounts(
        np.array(layers, dtype=np.int32),
        np.array(experts, dtype=np.int32),
        np.array(tokens, dtype=np.int64),
    )


def with_sent(sent: SentCounts) -> Change:
    return lambda made: replace(made, sent=sent)


def with_steps(**counts: float) -> Change:
    return lambda made: replace(made, steps=replace(made.steps, **counts))


REFUSALS: list[tuple[str, Change, str]] = [
    ("duplicate_expert", with_sent(sent_of([0, 0], [0, 0], [5, 6])), "expert 0 of layer 0 twice"),
    (
        "dtype",
        with_sent(replace(sent_of([0], [0], [5]), layers=np.array([0.5]))),
        "float64, int32, int64",
    ),
    ("shape", with_sent(sent_of([[0]], [[0]], [5])), "[1, 1]"),
    ("shape", with_sent(sent_of([0, 0], [0, 1], [5])), "shapes [2], [2], [1]"),
    ("negative", with_steps(real=-1), "real is -1"),
    ("negative", with_steps(overflow_tokens=-5), "overflow_tokens is -5"),
    ("negative", with_steps(step_seconds=-0.5), "step_seconds is -0.5"),
    ("nan", with_steps(step_seconds=float("nan")), "step_seconds is nan"),
    ("nan", with_steps(expert_seconds=float("inf")), "expert_seconds is inf"),
    ("backwards", with_steps(real=3), "real fell from 40 to 3"),
    ("backwards", with_steps(expert_seconds=0.0), "expert_seconds fell from 0.4 to 0.0"),
    ("negative", lambda r: replace(r, step=-20), "step is -20"),
    ("negative", lambda r: replace(r, reset=-1), "reset is -1"),
    ("overflow", lambda r: replace(r, received=np.array([[0, 2**62]])), "layer 0 slot 1: 46116"),
    ("overflow", lambda r: replace(r, sent_total=np.array([2**62])), "layer 0: 46116"),
    ("dtype", lambda r: replace(r, received=np.array([[1, 2]], np.uint64)), "uint64"),
    ("dtype", lambda r: replace(r, received=np.array([[True, False]])), "bool"),
    ("dtype", lambda r: replace(r, received=np.array([[1j, 0]])), "complex128"),
]


@pytest.mark.parametrize(("reason", "change", "says"), REFUSALS)
def test_one_sick_report_costs_its_rank_one_report(reason: str, change: Change, says: str) -> None:
    ranks = started()
    text = refused(reason, change(ranks.report(1, 60)), ranks.windows)
    assert "rank 1" in text
    assert says in text
    ranks.cut(60)
    window = ranks.windows.window()
    assert (window.num_steps, window.coverage) == (40, 1.0)


@pytest.mark.parametrize("rank", [-1, 4, 10**6])
def test_closing_totals_of_a_rank_outside_the_group_are_refused(rank: int) -> None:
    ranks = started()
    closing = replace(ranks.report(1, 40), is_closing=True, step=47)
    ranks.windows.begin(Epoch(5), FOUR)
    refused("unknown_rank", closing, ranks.windows, rank)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_counts_as_large_as_can_be_summed_are_summed(num_ranks: int) -> None:
    placement = placement_from_ranks([[[0]] * num_ranks], num_experts=1)
    windows = LoadWindows(group_of(placement), TERMS)
    most = (2**63 - 1) // num_ranks**2
    each = most // num_ranks
    for step, count in ((20, 0), (40, each)):
        for rank in range(num_ranks):
            tokens = count * num_ranks if rank == 0 else 0
            windows.add(report([[count]], windows.group, step=step, tokens=tokens), rank)
    heat = heat_of(windows.window(), placement)
    assert heat.tokens.tolist() == [[float(each * num_ranks)]]
    refused("overflow", report([[most + 1]], windows.group, step=60), windows, 0)


@pytest.mark.parametrize("ahead", [10**9, 3000, 1000])
def test_a_rank_whose_steps_run_ahead_does_not_push_out_the_others(ahead: int) -> None:
    ranks = started()
    for number in range(1, 31):
        step = 40 + 20 * number
        ranks.cut(step, without=[2])
        ranks.windows.add(replace(ranks.report(2, step), step=ahead + step), 2)
    window = ranks.windows.window()
    assert (window.last_step, window.num_steps, window.coverage) == (640, 60, 0.75)
    assert window.is_known.tolist() == [True, True, False, True]


def test_ranks_that_fell_silent_do_not_hold_an_old_window_for_ever() -> None:
    ranks = started()
    for step in range(60, 2000, 20):
        ranks.cut(step, without=[1, 2, 3])
    window = ranks.windows.window()
    assert window.last_step == 1980
    assert window.is_known.tolist() == [True, False, False, False]


def cut_with_sent(ranks: Fleet, step: int, told: int, *, is_told: bool) -> None:
    for rank in range(4):
        made = ranks.report(rank, step)
        if is_told:
            made = replace(made, sent=sent_of([0], [0], [told if rank == 0 else 0]))
        ranks.windows.add(made, rank)


@pytest.mark.parametrize("every", [1, 2, 3, 10])
def test_sent_counts_that_come_seldom_are_held_against_those_before(every: int) -> None:
    ranks = fleet(FOUR, SLOTS)
    for number in range(2 * every):
        is_told = number % every == 0
        cut_with_sent(ranks, 20 * (number + 1), 12 * (number + 1), is_told=is_told)
    last = 20 * (2 * every + 1)
    for rank in range(3):
        sent = sent_of([0], [0], [last * 6 // 10 - 1 if rank == 0 else 0])
        ranks.windows.add(replace(ranks.report(rank, last), sent=sent), rank)
    wrong = replace(ranks.report(3, last), sent=sent_of([0], [0], [0]))
    text = refused("conservation", wrong, ranks.windows, 3)
    assert f"between steps {last - 20 * every} and {last}" in text
    assert f"expert 0: {12 * every - 1} copies sent, {12 * every} received on ranks [0, 3]" in text
    window = ranks.windows.window()
    assert window.last_step <= max(last - 20 * every, 0)


def test_one_layer_of_one_rank_that_lost_tokens_is_named() -> None:
    placement = placement_from_ranks([[[0, 1], [2, 3]]] * 3, num_experts=4)
    ranks = fleet(placement, [[4, 3, 2, 1]] * 3)
    ranks.cut(20)
    ranks.windows.add(ranks.report(0, 40), 0)
    made = ranks.report(1, 40)
    lost = made.received.copy()
    lost[2, 1] -= 1
    text = refused("conservation", replace(made, received=lost), ranks.windows)
    assert "between steps 20 and 40: layer 2: ranks 0 to 1 sent 20 token copies" in text
    assert "layer 0" not in text
    assert "layer 1" not in text


PEERS = {0: [10, 20, 0, 0], 1: [10, 20, 0, 0], 2: [0, 0, 30, 0], 3: [0, 0, 30, 0]}
REPLICAS = placement_from_ranks([[[0], [1], [0], [1]]], num_experts=2)


def peers(meaning: CountMeaning, *, without: Sequence[int] = ()) -> LoadWindows:
    group = group_of(REPLICAS, meaning=meaning, num_counters=2)
    windows = LoadWindows(group, TERMS)
    for step in (20, 40):
        for rank, counts in PEERS.items():
            if rank not in without:
                so_far = np.array([counts]) * (step // 20)
                made = report(so_far, group, step=step, tokens=int(so_far.sum()))
                windows.add(made, rank)
    return windows


@pytest.mark.parametrize("meaning", [CountMeaning.PARTIAL, CountMeaning.REPLICATED])
@pytest.mark.parametrize("missing", [0, 3])
def test_parts_of_a_sum_are_no_load_while_one_is_missing(
    meaning: CountMeaning, missing: int
) -> None:
    windows = peers(meaning, without=[missing])
    window = windows.window()
    assert (window.num_steps, window.coverage) == (0, 0.75)
    assert not window.is_known[missing]
    assert not heat_of(window, REPLICAS).tokens.any()
    assert np.isnan(measured_imbalance(window, REPLICAS)).all()


def test_peers_that_count_the_same_tokens_must_agree() -> None:
    windows = peers(CountMeaning.REPLICATED)
    for rank in range(3):
        counts = np.array([PEERS[rank]]) * 3
        made = report(counts, windows.group, step=60, tokens=int(counts.sum()))
        windows.add(made, rank)
    odd = np.array([[0, 0, 89, 1]])
    made = report(odd, windows.group, step=60, tokens=90)
    text = refused("conservation", made, windows, 3)
    assert "layer 0 slot 2: 59 tokens over 2 ranks that count the same" in text


@pytest.mark.parametrize("phase", [None, *Phase])
def test_a_group_without_moe_layers_has_windows_without_load(phase: Phase | None) -> None:
    placement = replace(FOUR, phy2log=np.zeros((0, 8), dtype=np.int32))
    ranks = Fleet(LoadWindows(group_of(placement), TERMS), np.zeros((0, 8), dtype=np.int64))
    for step in (20, 40):
        for rank in range(4):
            made = report(np.zeros((0, 2), dtype=np.int64), ranks.windows.group, step=step)
            ranks.windows.add(made, rank)
    assert ranks.windows.window(phase).coverage == 1.0
    assert heat_of(ranks.windows.window(phase), placement).tokens.shape == (0, 7)
