"""All placements of a tiny layer are looked at, under the shares and costs that are given."""

from itertools import combinations, product

import numpy as np
import pytest

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import initial_placement
from eplb_service.policies import tiny
from eplb_service.policies.balance import Balance
from eplb_service.policies.bounds import Bounds
from eplb_service.policies.catalog import policy_named
from eplb_service.policies.request import (
    PolicyRequest,
    even_split,
    split_by_source,
    split_by_tensor_rank,
)
from eplb_service.policies.terms import Terms
from eplb_service.policies.tiny import is_tiny, with_fewest_moves


def drawn(seed: int) -> Balance:
    rng = np.random.default_rng(seed)
    num_ranks, num_experts = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    held = [
        rng.permutation(num_experts)[: rng.integers(0, num_experts + 1)].tolist()
        for _ in range(num_ranks)
    ]
    heat = rng.choice([0.0, 1.0, 7.0], num_experts) * rng.random(num_experts)
    weights = rng.random(num_ranks) + 0.1
    split = split_by_source(weights)
    terms = Terms(fixed=float(rng.choice([0.0, 0.4])), speeds=tuple(weights.tolist()))
    if seed % 2:
        split = split_by_tensor_rank(weights, tensor_ranks=2)
        terms = Terms(turn=1, fixed=terms.fixed, speeds=terms.speeds)
    return Balance(heat, held, split, terms)


def every_placement(balance: Balance) -> list[tuple[int, float]]:
    """Moves and peak of all that hold what is held."""
    experts = range(len(balance.heat))
    needed = {e for e in experts if balance.holders[e]}
    found: list[tuple[int, float]] = []
    for ranks in product(*(list(combinations(experts, len(held))) for held in balance.ranks)):
        if needed <= {e for held in ranks for e in held}:
            then = Balance(balance.heat, ranks, balance.split, balance.terms)
            pairs = zip(balance.ranks, ranks, strict=True)
            moves = sum(len(set(after) - set(before)) for before, after in pairs)
            found.append((moves, then.peak))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_the_fewest_moves_to_near_the_lowest_peak_are_found(seed: int) -> None:
    balance = drawn(seed)
    most, within = (seed // 2) % 5, (0.0, 0.1)[seed % 2]
    allowed = [(moves, peak) for moves, peak in every_placement(balance) if moves <= most]
    limit = min(peak for _, peak in allowed) * (1 + within) + 1e-9
    fewest = min(moves for moves, peak in allowed if peak <= limit)
    found = with_fewest_moves(balance, within=within, most=most)
    pairs = zip(balance.ranks, found.ranks, strict=True)
    changed = [(b, a) for before, after in pairs for b, a in zip(before, after, strict=True)]
    assert found.peak <= limit
    assert sum(before != after for before, after in changed) == fewest
    assert [len(held) for held in found.ranks] == [len(held) for held in balance.ranks]


def test_large_layers_are_not_tiny() -> None:
    even = split_by_source(np.ones(4))
    one = Balance(np.ones(8), [[0, 1, 2, 3], [4, 5, 6, 7]] * 2, even)
    assert is_tiny(one, among=1)
    assert not is_tiny(one, among=2)
    nine = Balance(np.ones(9), [[0, 1, 2, 3], [4, 5, 6, 7]] * 2, even)
    assert not is_tiny(nine, among=1)
    whole = Balance(np.ones(40), [list(range(40))], split_by_source(np.ones(1)))
    assert not is_tiny(whole, among=1)


@pytest.mark.parametrize("policy", ["packing", "incremental"])
def test_layers_of_a_large_deployment_are_not_tiny_even_where_each_is_asked_alone(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight experts on eight ranks, 32 layers: one layer's placements alone would be few enough.

    A budget for each layer has a policy asked once more for one layer at a time.
    """

    def all_of_them(*_: object, **__: object) -> None:
        raise AssertionError("all placements are looked at")

    monkeypatch.setattr(tiny, "tried_all", all_of_them)
    placement = initial_placement(num_layers=32, num_experts=8, layout=SlotLayout((1,) * 8))
    heat = np.random.default_rng(0).uniform(500, 1500, (32, 8))
    bounds = Bounds(per_layer=1)
    request = PolicyRequest(heat, placement, even_split(8), tuple(range(32)), bounds=bounds)
    policy_named(policy).draw(request)
    one = PolicyRequest(heat, placement, even_split(8), (3,), bounds=bounds)
    policy_named(policy).draw(one)
