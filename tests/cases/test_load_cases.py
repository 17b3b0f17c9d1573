"""Reported cases of reports and windows (families F10, F11, F13, F15, F16, F22, F43, F50 ...)."""

from dataclasses import replace

import numpy as np
import pytest

from eplb_service.controller.planning import draft
from eplb_service.domain.deployment import CountMeaning
from eplb_service.domain.errors import InvalidReport
from eplb_service.domain.placement import initial_placement, placement_from_ranks
from eplb_service.domain.plan import Plan
from eplb_service.load.fold import heat_of, measured_imbalance, measured_load
from eplb_service.load.windows import LoadWindows
from tests.load.reports import TERMS, Fleet, fleet, group_of, report
from tests.planning.tasks import layers_of, task_of

HALVES = placement_from_ranks([[[0, 1], [2, 3]]] * 2, num_experts=4)


def test_f10_nan_is_refused_by_rank_layer_and_slot_and_other_ranks_go_on() -> None:
    ranks = fleet(HALVES, [[10, 20, 5, 5], [10, 20, 5, 5]])
    ranks.cut(20)
    ranks.cut(40)
    sick = replace(ranks.report(1, 60), received=np.array([[10, np.nan], [10, 20]]))
    with pytest.raises(InvalidReport, match="rank 1 layer 0 slot 1: nan") as refused:
        ranks.windows.add(sick, 1)
    assert refused.value.reason == "nan"
    ranks.windows.add(ranks.report(0, 60), 0)
    window = ranks.windows.window()
    assert (window.last_step, window.coverage) == (40, 1.0)


def test_f11_large_counts_neither_wrap_nor_change_the_imbalance() -> None:
    placement = placement_from_ranks([[[0], [1]]], num_experts=2)
    ranks = fleet(placement, [[2_000_000_000, 1_000_000_000]])
    for step in (20, 30, 40):
        ranks.cut(step)
    window = ranks.windows.window()
    assert window.slot_tokens.tolist() == [[4_000_000_000, 2_000_000_000]]
    assert measured_imbalance(window, placement).tolist() == [pytest.approx(4 / 3)]


def test_f11_an_int32_that_wrapped_is_refused() -> None:
    placement = placement_from_ranks([[[0], [1]]], num_experts=2)
    windows = LoadWindows(group_of(placement), TERMS)
    windows.add(report([[2_000_000_000]], windows.group, step=20), 0)
    with pytest.raises(InvalidReport) as negative:
        windows.add(report([[-294_967_296]], windows.group, step=40), 0)
    with pytest.raises(InvalidReport) as smaller:
        windows.add(report([[5]], windows.group, step=40), 0)
    assert (negative.value.reason, smaller.value.reason) == ("negative", "backwards")


def test_f13_tokens_that_peers_report_too_are_counted_once() -> None:
    placement = placement_from_ranks([[[0], [1], [0], [1]]], num_experts=2)
    group = group_of(placement, meaning=CountMeaning.REPLICATED, num_counters=2)
    windows = LoadWindows(group, TERMS)
    peers = ([10, 20, 0, 0], [10, 20, 0, 0], [0, 0, 30, 0], [0, 0, 30, 0])
    for times, step in enumerate((20, 40)):
        for rank, counts in enumerate(peers):
            so_far = np.array([counts]) * times
            windows.add(report(so_far, group, step=step, tokens=int(so_far.sum())), rank)
    assert heat_of(windows.window(), placement).tokens.tolist() == [[40, 20]]


def test_f15_a_rank_that_reports_zeros_is_idle_and_the_window_complete() -> None:
    current = layers_of([[0, 1], [2, 3], [4, 5], [6, 7]], num_experts=8)
    ranks = fleet(current, [[40, 40, 10, 10, 5, 5, 0, 0]])
    ranks.cut(20)
    ranks.cut(40)
    window = ranks.windows.window()
    assert window.coverage == 1.0
    assert measured_load(window, current)[0, 3] == 0
    heat = heat_of(window, current)
    assert isinstance(draft(replace(task_of(current, heat.tokens.tolist()), heat=heat)), Plan)


def test_f16_ranks_out_of_step_are_aligned_and_a_late_joiner_waits_for_a_full_window() -> None:
    placement = initial_placement(
        num_layers=1, num_experts=4, layout=layers_of([[0], [1], [2], [3]], num_experts=4).layout
    )
    ranks = fleet(placement, [[4, 3, 2, 1]])
    ranks.cut(1000, without=[2, 3])
    ranks.cut(1020, without=[2, 3])
    for step in (1040, 1060, 1080):
        ranks.cut(step, without=[3])
    before = ranks.windows.window()
    assert (before.first_step, before.last_step, before.coverage) == (1040, 1080, 0.75)
    with pytest.raises(InvalidReport, match="multiple of 10"):
        ranks.windows.add(replace(ranks.report(3, 1090), step=1094), 3)
    ranks.windows.add(ranks.report(3, 1090), 3)
    ranks.cut(1100)
    assert ranks.windows.window().coverage == 0.75
    ranks.cut(1120)
    after = ranks.windows.window()
    assert (after.first_step, after.last_step, after.coverage) == (1100, 1120, 1.0)
    assert after.slot_tokens.min() > 0


def test_f22_counts_are_read_with_the_map_that_is_served_not_with_a_plan() -> None:
    served = layers_of([[0, 1], [2, 3]], num_experts=4)
    answer = draft(task_of(served, [[5, 1, 2, 3]], layers_of([[0, 2], [1, 3]], num_experts=4)))
    assert isinstance(answer, Plan)
    ranks = fleet(served, [[10, 5, 7, 30]])
    ranks.cut(20)
    ranks.cut(30)
    ranks.cut(40)
    assert (heat_of(ranks.windows.window(), served).tokens / 2).tolist() == [[10, 5, 7, 30]]


def test_f43_a_slot_declared_empty_gets_no_token_and_is_no_expert() -> None:
    padded = layers_of([[0, 1, 2], [3, 4, 5], [6, 7, -1]], num_experts=8)
    ranks = fleet(padded, [[5, 5, 5, 5, 5, 5, 7, 8, 0]])
    ranks.cut(20)
    ranks.cut(30)
    ranks.cut(40)
    window = ranks.windows.window()
    assert measured_imbalance(window, padded).tolist() == [1.0]
    bad = replace(ranks.report(2, 60), received=np.array([[99, 99, 1]]))
    with pytest.raises(InvalidReport, match="declared empty"):
        ranks.windows.add(bad, 2)


def test_f50_a_report_changes_only_the_deployment_that_it_is_for() -> None:
    a = fleet(placement_from_ranks([[[0, 1], [2, 3]]] * 2, num_experts=4), [[1, 1, 1, 1]] * 2)
    b: Fleet = fleet(
        placement_from_ranks([[[0, 1, 2, 3], [4, 5, 6, 7]]] * 3, num_experts=8), [[2] * 8] * 3
    )
    for one in (a, b):
        one.cut(20)
        one.cut(40)
    before = a.windows.window().slot_tokens.copy()
    b.cut(60)
    assert b.windows.window().num_steps == 40
    assert (a.windows.window().slot_tokens == before).all()
    with pytest.raises(InvalidReport, match="placement"):
        a.windows.add(b.report(0, 80), 0)


def test_f51_shared_experts_are_not_routed_load() -> None:
    placement = placement_from_ranks([[[0, 1, 4], [2, 3, 4]]], num_experts=4, num_shared=1)
    windows = LoadWindows(group_of(placement), TERMS)
    for times, step in enumerate((20, 40)):
        for rank, slots in enumerate(([10, 10, 40], [30, 0, 50])):
            made = report(
                [[n * times for n in slots]],
                windows.group,
                step=step,
                tokens=50 * times if rank == 0 else 0,
            )
            windows.add(made, rank)
    window = windows.window()
    assert heat_of(window, placement).tokens.tolist() == [[10, 10, 30, 0]]
    assert measured_imbalance(window, placement).tolist() == [pytest.approx(1.2)]


def test_f65_folding_replicas_keeps_the_total() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3)
    ranks = fleet(placement, [[30, 10, 50, 10]])
    for step in (20, 30, 40):
        ranks.cut(step)
    tokens = heat_of(ranks.windows.window(), placement).tokens / 2
    assert tokens.tolist() == [[80, 10, 10]]
