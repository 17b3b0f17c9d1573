"""A window encloses the same steps on all its ranks, and never takes silence for zero."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from eplb_service.domain.deployment import CountMeaning
from eplb_service.domain.heat import mean_with_data
from eplb_service.domain.ids import Epoch
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement, placement_from_ranks
from eplb_service.domain.report import Phase
from eplb_service.load.fold import heat_of, measured_imbalance, measured_load
from eplb_service.load.group import WindowTerms
from eplb_service.load.windows import LoadWindows
from tests.load.reports import (
    EPOCH,
    FOUR,
    SLOTS,
    TERMS,
    Fleet,
    at_reset,
    fleet,
    group_of,
    refused,
    report,
    served_under,
    started,
)


def test_a_window_is_the_difference_of_two_cuts() -> None:
    window = started().windows.window()
    assert (window.first_step, window.last_step, window.coverage) == (20, 40, 1.0)
    assert (window.slot_tokens == 2 * np.array(SLOTS)).all()
    assert window.step_seconds == pytest.approx(0.04)
    assert window.expert_seconds == pytest.approx(0.01)


def test_what_the_reports_of_both_phases_say_alike_counts_once() -> None:
    """A rank has one clock and one overflow; a cut tells them in the report of each phase."""
    ranks = fleet(FOUR, SLOTS)
    for step in (20, 40):
        for rank in range(4):
            made = ranks.report(rank, step)
            full = replace(made, steps=replace(made.steps, overflow_tokens=step))
            for phase in (Phase.PREFILL, Phase.DECODE):
                ranks.windows.add(replace(full, phase=phase), rank)
    window = ranks.windows.window()
    assert window.step_seconds == pytest.approx(0.04)
    assert window.expert_seconds == pytest.approx(0.01)
    assert window.overflow_tokens == 4 * 20


def test_one_cut_is_no_window() -> None:
    ranks = fleet(FOUR, SLOTS)
    ranks.cut(20)
    window = ranks.windows.window()
    assert (window.num_steps, window.coverage) == (0, 0.0)


def test_a_lost_report_loses_nothing() -> None:
    ranks = fleet(FOUR, SLOTS)
    for step in (20, 40, 60):
        ranks.cut(step, without=[2] if step == 40 else [])
    window = ranks.windows.window()
    assert (window.num_steps, window.coverage) == (40, 1.0)
    assert (window.slot_tokens == 4 * np.array(SLOTS)).all()


def test_a_window_is_no_longer_than_it_should_be_and_memory_is_bounded() -> None:
    ranks = fleet(FOUR, SLOTS)
    for step in range(20, 2000, 20):
        ranks.cut(step)
    assert (ranks.windows.window().first_step, ranks.windows.window().last_step) == (1920, 1980)


def test_a_cut_that_still_fills_does_not_shorten_the_window() -> None:
    ranks = fleet(FOUR, SLOTS)
    for step in range(20, 200, 20):
        ranks.cut(step)
    ranks.cut(200, without=[3])
    window = ranks.windows.window()
    assert (window.last_step, window.num_steps, window.coverage) == (180, 60, 1.0)


def test_a_rank_that_fell_silent_is_unknown_not_zero() -> None:
    ranks = fleet(FOUR, SLOTS)
    ranks.cut(20)
    for step in range(40, 200, 20):
        ranks.cut(step, without=[1])
    window = ranks.windows.window()
    assert window.coverage == 0.75
    assert np.isnan(measured_load(window, FOUR)[0]).tolist() == [False, True, False, False]
    assert measured_imbalance(window, FOUR).tolist() == [1.0]
    heat = heat_of(window, FOUR).tokens[0] / (window.num_steps // 10)
    assert heat.tolist() == [6, 1, 2.4, 2.4, 4, 0, 1]


def test_a_reset_starts_a_new_counting_without_negative_counts() -> None:
    ranks = started()
    ranks.start = 40
    for step in (60, 80):
        for rank in range(4):
            ranks.windows.add(at_reset(1, ranks.report(rank, step)), rank)
    window = ranks.windows.window()
    assert (window.first_step, window.last_step) == (60, 80)
    assert (window.slot_tokens == 2 * np.array(SLOTS)).all()


def test_a_new_epoch_starts_with_nothing() -> None:
    ranks = started()
    ranks.windows.begin(Epoch(5), FOUR)
    assert ranks.windows.window().num_steps == 0
    refused("foreign_epoch", served_under(ranks.report(1, 60), EPOCH), ranks.windows)


def test_closing_totals_of_an_epoch_that_is_over_are_taken_and_change_nothing() -> None:
    ranks = started()
    closing = replace(ranks.report(1, 40), is_closing=True, step=47)
    ranks.windows.begin(Epoch(5), FOUR)
    ranks.windows.add(closing, 1)
    assert ranks.windows.window().num_steps == 0


def test_closing_totals_may_come_at_any_step_and_again() -> None:
    ranks = started()
    closing = replace(ranks.report(1, 40), is_closing=True, step=47)
    ranks.windows.add(closing, 1)
    ranks.windows.add(closing, 1)
    assert ranks.windows.last_step(1) == 47


def test_counts_of_replicated_tokens_are_divided() -> None:
    placement = placement_from_ranks([[[0], [1], [0], [1]]], num_experts=2)
    group = group_of(placement, meaning=CountMeaning.REPLICATED, num_counters=2)
    windows = LoadWindows(group, TERMS)
    seen = {0: [10, 20, 0, 0], 1: [10, 20, 0, 0], 2: [0, 0, 30, 0], 3: [0, 0, 30, 0]}
    for step in (20, 40):
        for rank, counts in seen.items():
            so_far = np.array([counts]) * (step // 20)
            windows.add(report(so_far, group, step=step, tokens=int(so_far.sum())), rank)
    assert heat_of(windows.window(), placement).tokens.tolist() == [[40, 20]]


def test_parts_counted_by_the_routers_are_summed() -> None:
    placement = placement_from_ranks([[[0], [1]]], num_experts=2)
    group = group_of(placement, meaning=CountMeaning.PARTIAL)
    windows = LoadWindows(group, TERMS)
    for step in (20, 40):
        for rank, counts in enumerate(([10, 5], [1, 2])):
            so_far = np.array([counts]) * (step // 20)
            windows.add(report(so_far, group, step=step, tokens=int(so_far.sum())), rank)
    assert windows.window().slot_tokens.tolist() == [[11, 7]]


def test_phases_are_kept_apart_and_together_only_when_asked() -> None:
    placement = placement_from_ranks([[[0], [1]]], num_experts=2)
    windows = LoadWindows(group_of(placement), TERMS)
    by_phase = {Phase.PREFILL: [50, 10], Phase.DECODE: [2, 8]}
    for step in (20, 40):
        for phase, counts in by_phase.items():
            for rank in range(2):
                so_far = [[counts[rank] * step // 20]]
                tokens = sum(counts) * step // 20 if rank == 0 else 0
                made = report(so_far, windows.group, step=step, tokens=tokens, phase=phase)
                windows.add(made, rank)
    assert windows.window(Phase.PREFILL).slot_tokens.tolist() == [[50, 10]]
    assert windows.window(Phase.DECODE).slot_tokens.tolist() == [[2, 8]]
    assert windows.window().slot_tokens.tolist() == [[52, 18]]
    assert heat_of(windows.window(Phase.DECODE), placement).phase is Phase.DECODE


def test_a_phase_that_a_rank_never_reported_holds_nothing() -> None:
    ranks = started()
    window = ranks.windows.window(Phase.PREFILL)
    assert (window.coverage, int(window.slot_tokens.sum())) == (1.0, 0)


@pytest.mark.parametrize(
    ("ranks", "num_shared", "slots", "heat", "imbalance"),
    [
        ([[0, 1], [0, 2]], 0, [30, 10, 50, 10], [80, 10, 10], 1.2),
        ([[0, 1, 4], [2, 3, 4]], 1, [10, 10, 40, 30, 0, 50], [10, 10, 30, 0], 1.2),
        ([[0, 1], [2, -1]], 0, [10, 10, 20, 0], [10, 10, 20], 1.0),
    ],
)
def test_folding_keeps_the_total_of_routed_experts(
    ranks: list[list[int]],
    num_shared: int,
    slots: Sequence[int],
    heat: list[float],
    imbalance: float,
) -> None:
    placement = placement_from_ranks([ranks], num_experts=len(heat), num_shared=num_shared)
    windows = LoadWindows(group_of(placement), TERMS)
    for step in (20, 40):
        for rank in range(2):
            own = np.array(slots)[placement.layout.slots_of(rank)] * (step // 20)
            tokens = int(sum(heat)) * (step // 20) if rank == 0 else 0
            windows.add(report([own.tolist()], windows.group, step=step, tokens=tokens), rank)
    window = windows.window()
    assert heat_of(window, placement).tokens.tolist() == [heat]
    assert measured_imbalance(window, placement).tolist() == [pytest.approx(imbalance)]


def test_no_data_is_not_a_number_and_the_mean_is_over_layers_with_data() -> None:
    placement = placement_from_ranks([[[0], [1]]] * 2, num_experts=2)
    window = LoadWindows(group_of(placement), TERMS).window()
    assert np.isnan(measured_imbalance(window, placement)).all()
    assert np.isnan(mean_with_data(measured_imbalance(window, placement)))
    assert mean_with_data(np.array([np.nan, 1.5])) == 1.5


@pytest.mark.slow
def test_windows_of_a_large_model_are_added_up_report_by_report() -> None:
    placement: Placement = initial_placement(
        num_layers=92, num_experts=896, layout=SlotLayout((16,) * 64)
    )
    terms = WindowTerms(report_steps=10, interval_steps=10, num_intervals=6)
    ranks = Fleet(LoadWindows(group_of(placement), terms), np.ones((92, 1024), dtype=np.int64))
    made = [[ranks.report(rank, step) for rank in range(64)] for step in range(10, 90, 10)]
    for cut in made:
        for rank, one in enumerate(cut):
            ranks.windows.add(one, rank)
    window = ranks.windows.window()
    assert (window.num_steps, window.coverage) == (60, 1.0)


def test_what_slow_ranks_and_experts_cost_is_part_of_the_imbalance() -> None:
    placement = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)
    windows = LoadWindows(group_of(placement), TERMS)
    for step in (20, 40):
        for rank, own in enumerate(([30, 10], [20, 0])):
            counts = [[tokens * step // 20 for tokens in own]]
            sent = 60 * step // 20 if rank == 0 else 0
            windows.add(report(counts, windows.group, step=step, tokens=sent), rank)
    window = windows.window()
    assert measured_imbalance(window, placement).tolist() == [pytest.approx(40 / 30)]
    fast = measured_imbalance(window, placement, speed=np.array([1.5, 0.75]))
    assert fast.tolist() == [pytest.approx(1.0)]
    costly = measured_imbalance(window, placement, expert_cost=10.0)
    assert costly.tolist() == [pytest.approx(60 / 45)]
