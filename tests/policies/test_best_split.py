"""The split of tokens over replicas is the best there is, and says how far it can reach."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.placement import EMPTY, Placement, placement_from_ranks
from eplb_service.policies.replicas import components, num_components, replicas_of
from eplb_service.policies.split import exact_split, split_imbalance
from tests.planning.placements import random_placement

FLASH_HEAT = [600.0, 560, 120, 120, 20, 10, 10, 10]
FLASH_RANKS = [[0, 1], [0, 1], [0, 1], [0, 1], [1, 2], [2, 3], [4, 5], [6, 7]]


def best_peak(heat: list[float], ranks: list[list[int]]) -> float:
    """Find the least peak by looking at every set of ranks: what sits only inside it stays there.

    The peak is at least that load over the size of the set; by duality the largest such
    quotient is also reached.
    """
    best = 0.0
    holders = [{r for r, held in enumerate(ranks) if e in held} for e in range(len(heat))]
    for mask in range(1, 2 ** len(ranks)):
        inside = {rank for rank in range(len(ranks)) if mask >> rank & 1}
        caught = sum(h for h, own in zip(heat, holders, strict=True) if own <= inside)
        best = max(best, caught / len(inside))
    return best


def ranks_of_layer(placement: Placement, layer: int) -> list[list[int]]:
    layout = placement.layout
    own = (placement.phy2log[layer, layout.slots_of(r)] for r in range(layout.num_ranks))
    return [[e for e in held.tolist() if e != EMPTY] for held in own]


@st.composite
def layers_with_heat(draw: st.DrawFn) -> tuple[Placement, np.ndarray[tuple[int, int]]]:
    """Unequal and empty slots, silent experts, silent layers, one expert with everything."""
    slots = draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    num_experts = draw(st.integers(1, sum(slots)))
    rng = Random(draw(st.integers(0, 2**32)))
    placement = random_placement(rng, num_layers=3, num_experts=num_experts, slots_per_rank=slots)
    unit = draw(st.sampled_from([1.0, 1e-3, 2.0**63]))
    heat = [[rng.choice([0, 0, 1, 5, 90 * rng.random(), 1000]) for _ in range(num_experts)]]
    heat += [[0.0] * num_experts, [1000.0] + [0.0] * (num_experts - 1)]
    return placement, np.array(heat) * unit


@settings(max_examples=80)
@given(given_=layers_with_heat())
def test_no_split_has_a_lower_peak(given_: tuple[Placement, np.ndarray[tuple[int, int]]]) -> None:
    placement, heat = given_
    shares = exact_split(heat, placement)
    got = split_imbalance(heat, placement, shares)
    assert (shares >= 0).all()
    for layer, tokens in enumerate(heat.tolist()):
        ranks = ranks_of_layer(placement, layer)
        mean = sum(tokens) / sum(bool(held) for held in ranks)
        if mean:
            want = best_peak(tokens, ranks) / mean
            assert got[layer] == pytest.approx(want, rel=1e-4)
        else:
            assert np.isnan(got[layer])


@settings(max_examples=50)
@given(given_=layers_with_heat())
def test_shares_of_every_expert_sum_to_one(
    given_: tuple[Placement, np.ndarray[tuple[int, int]]],
) -> None:
    placement, heat = given_
    shares = exact_split(heat, placement)
    layers, slots = np.nonzero(placement.routed())
    total = np.zeros(heat.shape)
    np.add.at(total, (layers, placement.phy2log[layers, slots]), shares[layers, slots])
    assert total == pytest.approx(1.0)
    assert (shares[~placement.routed()] == 0).all()


def test_the_published_example_reaches_its_mean() -> None:
    placement = placement_from_ranks([FLASH_RANKS], num_experts=8)
    heat = np.array([FLASH_HEAT])
    even = best_peak(FLASH_HEAT, FLASH_RANKS)
    shares = exact_split(heat, placement)
    assert split_imbalance(heat, placement, shares)[0] * 181.25 == pytest.approx(even, rel=1e-6)


def test_a_long_chain_is_levelled_from_end_to_end() -> None:
    num_ranks = 60
    chain = [[rank, rank + 1] for rank in range(num_ranks - 1)]
    ranks = [*chain, [num_ranks - 1, num_ranks]]
    placement = placement_from_ranks([ranks], num_experts=num_ranks + 1)
    heat = np.full((1, num_ranks + 1), 100.0)
    heat[0, 0], heat[0, -1] = 5.0, 95.0
    shares = exact_split(heat, placement)
    assert split_imbalance(heat, placement, shares)[0] == pytest.approx(1.0, abs=1e-5)


def test_shared_experts_take_no_part() -> None:
    placement = placement_from_ranks([[[0, 2], [0, 2], [1, EMPTY]]], num_experts=2, num_shared=1)
    shares = exact_split(np.array([[60.0, 30.0]]), placement)
    assert shares[0] == pytest.approx([0.5, 0, 0.5, 0, 1, 0])


def test_the_same_heat_gives_the_same_shares_to_the_last_bit() -> None:
    rng = Random(3)
    placement = random_placement(rng, num_layers=4, num_experts=20, slots_per_rank=[4] * 8)
    heat = np.random.default_rng(0).lognormal(size=(4, 20))
    assert (exact_split(heat, placement) == exact_split(heat, placement)).all()
    alone = Placement(placement.phy2log[2:3].copy(), 20, placement.layout)
    assert exact_split(heat[2:3], alone)[0] == pytest.approx(exact_split(heat, placement)[2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_heat_that_is_no_heat_is_refused_with_its_place(bad: float) -> None:
    placement = placement_from_ranks([[[0, 1], [1, 2]]], num_experts=3)
    with pytest.raises(InvalidTable, match="layer 0 expert 1 has heat"):
        exact_split(np.array([[1.0, bad, 2.0]]), placement)
    with pytest.raises(InvalidTable, match=r"shape \[1, 2\]; expected \[1, 3\]"):
        exact_split(np.ones((1, 2)), placement)


def test_ranks_are_joined_through_any_chain_of_replicas() -> None:
    ranks = [[4, 0], [0, 1], [1, 2], [2, 3], [5, 6], [6, 7]]
    placement = placement_from_ranks([ranks], num_experts=8)
    assert components(placement).tolist() == [[0, 0, 0, 0, 4, 4]]
    assert num_components(placement).tolist() == [2]
    assert replicas_of(placement).experts.tolist() == [0, 0, 1, 1, 2, 2, 6, 6]


def test_without_replicas_every_rank_is_alone() -> None:
    placement = placement_from_ranks([[[0], [1], [2]]], num_experts=3)
    assert num_components(placement).tolist() == [3]
    assert exact_split(np.array([[1.0, 2.0, 3.0]]), placement).tolist() == [[1, 1, 1]]


@settings(max_examples=40)
@given(given_=layers_with_heat())
def test_slack_costs_the_peak_no_more_than_it_says(
    given_: tuple[Placement, np.ndarray[tuple[int, int]]],
) -> None:
    placement, heat = given_
    least = split_imbalance(heat, placement, exact_split(heat, placement))
    with_slack = split_imbalance(heat, placement, exact_split(heat, placement, slack=0.01))
    loaded = ~np.isnan(least)
    assert (with_slack[loaded] <= least[loaded] * 1.01 * (1 + 1e-9)).all()
    assert (with_slack[loaded] >= least[loaded] * (1 - 1e-9)).all()
