"""Tiny layers, where all placements can be tried and one wrong replica weighs most."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from random import Random

import numpy as np
import pytest

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import initial_placement, placement_from_ranks
from eplb_service.domain.rules import violations
from eplb_service.policies.catalog import Listed, policy_named
from eplb_service.policies.request import PolicyRequest, even_split, predicted_load

BALANCING = [policy_named("packing"), policy_named("incremental")]
every_balancing_policy = pytest.mark.parametrize("listed", BALANCING, ids=lambda p: p.name)


def best_peak(heat: Sequence[float], slots: Sequence[int]) -> float:
    """Try every placement of one layer under an even split."""
    options = [list(combinations(range(len(heat)), size)) for size in slots]
    best = float("inf")
    for ranks in product(*options):
        counts = Counter(expert for rank in ranks for expert in rank)
        if len(counts) == len(heat):
            loads = (sum(heat[e] / counts[e] for e in rank) for rank in ranks)
            best = min(best, max(loads))
    return best


def peak_of(listed: Listed, ranks: Sequence[Sequence[int]], heat: Sequence[float]) -> float:
    placement = placement_from_ranks([ranks], num_experts=len(heat))
    request = PolicyRequest(
        np.array([heat], dtype=np.float64), placement, even_split(len(ranks)), layers=(0,)
    )
    drawn = listed.draw(request)
    assert not violations(drawn)
    return float(predicted_load(request.heat, drawn, request.split).max())


@every_balancing_policy
@pytest.mark.parametrize(
    ("ranks", "heat"),
    [
        ([[2], [1, 0], [0, 1], [2, 0]], [5, 5, 0]),
        ([[1], [2, 0], [0, 2], [2, 0]], [312, 72, 876]),
        ([[0, 2], [1, 2], [1, 2]], [0, 5, 10]),
        ([[4, 3, 1, 2], [1, 3, 4, 0]], [5, 10, 0, 10, 10]),
        ([[2, 0, 3], [1, 0, 3], [2, 1, 3]], [5, 5, 0, 10]),
        ([[1, 2], [3, 2], [0, 3], [1, 2]], [9, 261, 177, 2]),
        ([[4, 3], [0, 4], [4, 1], [3, 2]], [10, 10, 10, 5, 10]),
        ([[1, 2], [3, 0], [0, 1]], [80, 94, 88, 47]),
        ([[1, 3], [2, 3], [0, 2]], [3, 96, 41, 77]),
        ([[2, 1], [4, 1], [3, 5], [0, 4]], [5, 10, 10, 5, 10, 5]),
        ([[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]], [1, 1, 1000, 1, 1]),
        ([[0], [1, 2], [0, 1, 2]], [0, 0, 70]),
    ],
)
def test_traps_of_a_greedy_descent_are_left(
    listed: Listed, ranks: list[list[int]], heat: list[int]
) -> None:
    best = best_peak(heat, [len(rank) for rank in ranks])
    assert peak_of(listed, ranks, heat) <= 1.05 * best


@every_balancing_policy
@pytest.mark.parametrize("slots", [(3, 3, 3), (1, 2, 3), (2, 2, 2, 2), (4, 4), (1, 2, 2, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_the_peak_is_within_five_percent_of_the_best_there_is(
    listed: Listed, slots: tuple[int, ...], seed: int
) -> None:
    rng = Random(seed)
    num_experts = rng.randint(max(slots), min(sum(slots), 7))
    heat = [round(10 ** rng.uniform(0, 2)) for _ in range(num_experts)]
    layout = SlotLayout(slots)
    flat = initial_placement(num_layers=1, num_experts=num_experts, layout=layout)
    ranks = [flat.phy2log[0, layout.slots_of(r)].tolist() for r in range(len(slots))]
    assert peak_of(listed, ranks, heat) <= 1.05 * best_peak(heat, slots)
