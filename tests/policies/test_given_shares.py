"""Plans for runtimes whose shares are given: the rule they really use, and what a rank costs."""

from itertools import pairwise

import numpy as np
import pytest

from eplb_service.domain.errors import InvalidSettings, InvalidTable
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.moves import num_moves
from eplb_service.domain.placement import Placement, initial_placement, placement_from_ranks
from eplb_service.domain.rules import violations
from eplb_service.policies.balance import Balance
from eplb_service.policies.catalog import policy_named
from eplb_service.policies.recount import recount, take_back, water_level
from eplb_service.policies.request import (
    PolicyRequest,
    even_split,
    predicted_load,
    split_by_tensor_rank,
)
from eplb_service.policies.terms import PLAIN, Terms

HALVES = placement_from_ranks([[[0]] * 4 + [[1]] * 4], num_experts=2)


def plan(
    placement: Placement, heat: FloatArray, *, split: FloatArray, terms: Terms = PLAIN
) -> tuple[float, float]:
    """Imbalance before and after, under the shares and costs that are given."""
    layers = tuple(range(placement.num_layers))
    request = PolicyRequest(heat, placement, split, layers, terms=terms)
    drawn = policy_named("incremental").draw(request)
    assert not violations(drawn)
    load = [predicted_load(heat, p, split, terms) for p in (placement, drawn)]
    before, after = (float((of.max(axis=1) / of.mean(axis=1)).mean()) for of in load)
    return before, after


@pytest.mark.parametrize(("source", "slots"), [(3, [3, 4]), (7, [0, 5])])
def test_tensor_ranks_choose_replicas_as_vllm_ascend_does(source: int, slots: list[int]) -> None:
    split = split_by_tensor_rank(np.eye(8)[source], tensor_ranks=4)
    load = predicted_load(np.array([[10.0, 10.0]]), HALVES, split, Terms(turn=1))
    assert np.flatnonzero(load[0]).tolist() == slots


def test_a_plan_for_tensor_ranks_is_level_under_their_rule_and_not_only_under_an_even_one() -> None:
    flat = initial_placement(num_layers=4, num_experts=32, layout=SlotLayout((6,) * 8))
    heat = np.random.default_rng(3).lognormal(0, 1, (4, 32)) * 1000
    split = split_by_tensor_rank(np.ones(8), tensor_ranks=4)
    before, after = plan(flat, heat, split=split, terms=Terms(turn=1))
    assert after <= 1.02 < before


def test_experts_that_cost_their_rank_by_being_there_are_spread() -> None:
    flat = placement_from_ranks([[[0, 1, 2], [3, 4, 5], [6, 7, 0]]], num_experts=8)
    heat = np.array([[300.0, 0, 0, 100, 100, 100, 0, 0]])
    by_tokens = predicted_load(heat, flat, even_split(3))
    by_experts = predicted_load(heat, flat, even_split(3), Terms(fixed=1000.0))
    assert by_tokens.tolist() == [[150, 300, 150]]
    assert by_experts.tolist() == [[1150, 3300, 1150]]
    before, after = plan(flat, heat, split=even_split(3), terms=Terms(fixed=1000.0))
    assert after < 0.8 * before


def test_a_slow_rank_gets_fewer_tokens() -> None:
    flat = initial_placement(num_layers=1, num_experts=24, layout=SlotLayout((12,) * 4))
    heat = np.full((1, 24), 100.0)
    terms = Terms(speeds=(1.0, 1.0, 1.0, 0.5))
    layers = (0,)
    request = PolicyRequest(heat, flat, even_split(4), layers, terms=terms)
    drawn = policy_named("incremental").draw(request)
    tokens = predicted_load(heat, drawn, even_split(4))[0]
    cost = predicted_load(heat, drawn, even_split(4), terms)[0]
    assert tokens[3] < 0.75 * tokens[:3].mean()
    least_of_a_slot = 100 / 3 * 1.75  # 24 spare slots make three replicas of the rank's experts
    assert cost.max() <= 12 * least_of_a_slot + 1e-6


def test_terms_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="costs -1 tokens"):
        Terms(fixed=-1)
    with pytest.raises(InvalidSettings, match=r"rank 1 has a speed of 0\.0"):
        Terms(speeds=(1.0, 0.0))
    with pytest.raises(InvalidTable, match="1 speeds given; expected 8"):
        PolicyRequest(np.ones((1, 2)), HALVES, even_split(8), (0,), terms=Terms(speeds=(1.0,)))


def test_replicas_go_where_the_hottest_are_and_only_beyond_the_limit() -> None:
    ranks = [[0, 1], [2, 3], [4, 1], [2, 3]]
    heat = np.array([80.0, 20, 20, 20, 20])
    level = water_level(heat, num_slots=8, max_replicas=4)
    assert level == 20.0
    balance = Balance(heat, ranks, even_split(4))
    grown = recount(balance, highest=1.1 * level, most_moves=9)
    assert [len(holders) for holders in grown.holders] == [4, 1, 1, 1, 1]
    nearly = Balance(np.array([21.0, 20, 20, 20, 20]), ranks, even_split(4))
    assert recount(nearly, highest=1.1 * 20, most_moves=9).ranks == ranks


def test_what_the_peak_does_not_need_is_taken_back() -> None:
    start = Balance(np.full(6, 10.0), [[0, 1], [2, 3], [4, 5]], even_split(3))
    balance = start.holding([[0, 2], [1, 3], [4, 5]])
    back = take_back(balance, start, limit=balance.peak, highest=99.0)
    assert [set(held) for held in back.ranks] == [set(held) for held in start.ranks]


def drift(num_windows: int) -> list[FloatArray]:
    rng = np.random.default_rng(11)
    log = rng.normal(0, 0.7, (4, 128))
    return [np.exp(log + 0.1 * rng.standard_normal(log.shape)) * 1e4 for _ in range(num_windows)]


def test_even_mode_is_level_with_a_tenth_of_the_moves_and_as_level_as_packing_in_the_next() -> None:
    layout = SlotLayout((9,) * 16)
    even = even_split(16)
    held = initial_placement(num_layers=4, num_experts=128, layout=layout)
    packed, seen = held, drift(5)
    moves, next_peaks = [0, 0], [0.0, 0.0]
    for at, (heat, after) in enumerate(pairwise(seen)):
        drawn: list[Placement] = []
        for nth, (name, base) in enumerate((("incremental", held), ("greedy", packed))):
            drawn.append(policy_named(name).draw(PolicyRequest(heat, base, even, tuple(range(4)))))
            load = predicted_load(after, drawn[-1], even)
            if at:
                moves[nth] += num_moves(base, drawn[-1])
                next_peaks[nth] += float((load.max(axis=1) / load.mean(axis=1)).mean()) / 3
        held, packed = drawn
        now = predicted_load(heat, held, even)
        assert (now.max(axis=1) <= 1.02 * now.mean(axis=1) + 1e-6).all()
    assert moves[0] < 0.25 * moves[1]
    assert next_peaks[0] < 1.02 * next_peaks[1]
