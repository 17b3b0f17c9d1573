"""The compiled loops of even mode come to what the plain ones come to."""

import numpy as np
import pytest

from eplb_service.policies import descent, recount
from eplb_service.policies.balance import Balance
from eplb_service.policies.descent import Effort
from eplb_service.policies.request import split_by_source, split_by_tensor_rank
from eplb_service.policies.terms import Terms
from tests.policies import reference


def drawn(seed: int) -> Balance:
    """A layer of five ranks, some of them slow, under one of two rules."""
    rng = np.random.default_rng(seed)
    first = rng.permutation(14)[:12].tolist()
    ranks = [first[3 * rank : 3 * rank + 3] for rank in range(4)]
    ranks.append(rng.permutation(first)[: rng.integers(0, 5)].tolist())
    ranks[0] += [expert for expert in first[3:5] if rng.random() < 0.8]
    heat = rng.lognormal(0, 1, 14) * (rng.random(14) < 0.9)
    weights = rng.random(5) + 0.3
    terms = Terms(fixed=float(rng.choice([0.0, 0.4])), speeds=tuple(weights.tolist()))
    if seed % 2:
        split = split_by_tensor_rank(weights, tensor_ranks=2)
        return Balance(heat, ranks, split, Terms(turn=1, fixed=terms.fixed))
    return Balance(heat, ranks, split_by_source(weights), terms)


@pytest.mark.parametrize("seed", range(40))
def test_descent(seed: int) -> None:
    balance = drawn(seed)
    enough = (1.02 if seed % 3 else 1.2) * float(balance.load.mean())
    effort = Effort(max_moves=(None, 1, 4, 9)[seed % 4], enough=enough)
    found = descent.descend(balance, effort)
    assert found.ranks == reference.descend(balance, effort).ranks
    assert found.peak <= balance.peak


@pytest.mark.parametrize("seed", range(4))
def test_descent_of_a_layer_most_of_whose_changes_are_told_by_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = [rng.permutation(30)[:4].tolist() for _ in range(10)]
    heat = rng.lognormal(0, 1, 30)
    weights = rng.random(10) + 0.3
    rules = (split_by_source(weights), split_by_tensor_rank(weights, tensor_ranks=2))
    balance = Balance(heat, ranks, rules[seed % 2], Terms(turn=seed % 2, fixed=0.1))
    effort = Effort(max_moves=None if seed == 3 else 15, most_steps=5)
    found = descent.descend(balance, effort)
    assert found.ranks == reference.descend(balance, effort).ranks
    assert found.peak < balance.peak


@pytest.mark.parametrize("seed", range(40))
def test_counting_anew(seed: int) -> None:
    balance = drawn(seed)
    highest = float(balance.heat.max()) / (2 + seed % 3)
    found = recount.recount(balance, highest=highest, most_moves=seed % 5)
    plain = reference.recount(balance, highest=highest, most_moves=seed % 5)
    assert found.ranks == plain.ranks


@pytest.mark.parametrize("seed", range(40))
def test_taking_back(seed: int) -> None:
    before = drawn(seed)
    after = descent.descend(before, Effort())
    limit = after.peak + (before.peak - after.peak) * 0.3 * (seed % 4)
    highest = float(before.heat.max()) / (1 + seed % 3)
    found = recount.take_back(after, before, limit=limit, highest=highest)
    plain = reference.take_back(after, before, limit=limit, highest=highest)
    assert found.ranks == plain.ranks


def test_the_layers_that_are_drawn_give_all_loops_something_to_do() -> None:
    layers = [drawn(seed) for seed in range(40)]
    done = [descent.descend(layer, Effort(max_moves=4)) for layer in layers]
    assert sum(after.ranks != layer.ranks for layer, after in zip(layers, done, strict=True)) > 25
    anew = [recount.recount(b, highest=float(b.heat.max()) / 3, most_moves=4) for b in layers]
    assert sum(after.ranks != layer.ranks for layer, after in zip(layers, anew, strict=True)) > 15
    back = [
        recount.take_back(after, layer, limit=0.5 * (after.peak + layer.peak), highest=9e9)
        for layer, after in zip(layers, done, strict=True)
    ]
    assert sum(b.ranks != after.ranks for b, after in zip(back, done, strict=True)) > 10
