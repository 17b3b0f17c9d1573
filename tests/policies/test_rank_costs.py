"""Slow ranks, and experts that cost beside their tokens, count wherever load is leveled."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.ids import FloatArray, IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement, placement_from_ranks
from eplb_service.domain.rules import violations
from eplb_service.policies.connected import connected
from eplb_service.policies.request import PolicyRequest, even_split
from eplb_service.policies.shares import load_under, shares_by_row
from eplb_service.policies.split import exact_split, split_imbalance
from eplb_service.policies.terms import Terms
from tests.planning.placements import random_placement

EVERYWHERE = placement_from_ranks([[[0], [0]]], num_experts=1)
UNEQUAL = placement_from_ranks([[[0, 1, 2], [0]]], num_experts=3)


def best_time(heat: list[float], ranks: list[list[int]], terms: Terms) -> float:
    """Find the least time of the slowest rank by looking at every set of ranks."""
    speed = 1 / terms.slowness(len(ranks))
    fixed = [terms.fixed * sum(heat[e] > 0 for e in held) for held in ranks]
    holders = [{r for r, held in enumerate(ranks) if e in held} for e in range(len(heat))]
    best = 0.0
    for mask in range(1, 2 ** len(ranks)):
        inside = {rank for rank in range(len(ranks)) if mask >> rank & 1}
        caught = sum(h for h, own in zip(heat, holders, strict=True) if own <= inside)
        bears = caught + sum(fixed[rank] for rank in inside)
        best = max(best, bears / sum(speed[rank] for rank in inside))
    return best


def times(heat: FloatArray, placement: Placement, terms: Terms) -> FloatArray:
    """[N] what each rank of layer 0 bears under the best split."""
    shares, layout = exact_split(heat, placement, terms=terms), placement.layout
    tokens = shares[0] * heat[0, placement.phy2log[0]]
    tokens = tokens + terms.fixed * (heat[0, placement.phy2log[0]] > 0)
    own = np.array([tokens[layout.slots_of(rank)].sum() for rank in range(layout.num_ranks)])
    return own * terms.slowness(layout.num_ranks)


def test_a_rank_three_times_as_fast_takes_three_times_the_tokens() -> None:
    terms = Terms(speeds=(1.0, 3.0))
    heat = np.array([[100.0]])
    shares = exact_split(heat, EVERYWHERE, terms=terms)
    assert shares.tolist() == [[pytest.approx(0.25), pytest.approx(0.75)]]
    assert split_imbalance(heat, EVERYWHERE, shares, terms)[0] == pytest.approx(1.0)
    assert split_imbalance(heat, EVERYWHERE, shares)[0] == pytest.approx(1.5)


def test_a_rank_with_more_experts_takes_fewer_tokens_where_each_costs() -> None:
    heat = np.array([[100.0, 10.0, 10.0]])
    assert exact_split(heat, UNEQUAL)[0, 0] == pytest.approx(0.4)
    assert exact_split(heat, UNEQUAL, terms=Terms(fixed=10.0))[0, 0] == pytest.approx(0.3)
    silent = np.array([[100.0, 10.0, 0.0]])
    assert exact_split(silent, UNEQUAL, terms=Terms(fixed=10.0))[0, 0] == pytest.approx(0.4)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    fixed=st.sampled_from([0.0, 1.0, 300.0]),
)
def test_no_split_ends_sooner(seed: int, slots: list[int], fixed: float) -> None:
    rng = Random(seed)
    num_experts = rng.randint(1, sum(slots))
    placement = random_placement(rng, num_layers=1, num_experts=num_experts, slots_per_rank=slots)
    heat = [rng.choice([0, 1, 5, 90 * rng.random(), 1000]) for _ in range(num_experts)]
    terms = Terms(fixed=fixed, speeds=tuple(rng.choice([1, 2, 5]) for _ in slots))
    layout = placement.layout
    ranks = [placement.phy2log[0, layout.slots_of(r)].tolist() for r in range(len(slots))]
    want = best_time(heat, [[e for e in held if e >= 0] for held in ranks], terms)
    if (placement.phy2log >= 0).all() and sum(heat):
        got = times(np.array([heat]), placement, terms).max()
        assert got == pytest.approx(want, rel=1e-6)


def test_rows_go_to_ranks_by_their_speed() -> None:
    terms = Terms(speeds=(1.0, 3.0))
    heat = np.array([[100.0]])
    tables = shares_by_row(heat, EVERYWHERE, rows=64, terms=terms)
    assert load_under(tables, heat[None], EVERYWHERE)[0] == pytest.approx([25, 75])


def test_speeds_of_other_ranks_are_refused() -> None:
    with pytest.raises(InvalidTable, match="3 speeds given; expected 2, one per rank"):
        exact_split(np.array([[100.0]]), EVERYWHERE, terms=Terms(speeds=(1.0, 1.0, 1.0)))


@pytest.mark.parametrize(
    "terms",
    [
        Terms(speeds=(1.0,) * 7 + (0.5,)),
        Terms(fixed=2e4),
        Terms(fixed=2e3, speeds=(2.0,) + (1.0,) * 7),
    ],
)
def test_a_connected_plan_levels_what_ranks_bear(terms: Terms) -> None:
    layout = SlotLayout((9,) * 8)
    placement = initial_placement(num_layers=6, num_experts=64, layout=layout)
    rng = np.random.default_rng(0)
    heat = 1e4 * rng.lognormal(0, 0.8, (6, 64))
    held: list[IntArray] = []
    for _ in range(3):
        request = PolicyRequest(
            heat=heat,
            placement=placement,
            split=even_split(8),
            layers=tuple(range(6)),
            terms=terms,
        )
        placement = connected(request)
        assert not violations(placement)
        split = exact_split(heat, placement, terms=terms)
        assert split_imbalance(heat, placement, split, terms).max() <= 1.02
        held.append(placement.phy2log)
        heat = heat * rng.lognormal(0, 0.3, heat.shape)
    moved = [int((before != after).sum()) for before, after in pairwise(held)]
    assert max(moved) < 120
