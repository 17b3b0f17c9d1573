"""Packing one layer: replicas for the hottest experts, then the heaviest to the lightest rank.

After DeepSeek's EPLB (github.com/deepseek-ai/EPLB: greedy replication, longest processing
time first), with these differences: no rank ever holds an expert twice, and a descent
polishes what was packed.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.balance import LEAST_GAIN, Balance
from eplb_service.policies.descent import Effort, descend
from eplb_service.policies.tiny import is_tiny, with_fewest_moves

SMALL_LAYER = 200
"""Slots up to which several starts are tried, since one wrong count weighs more there."""
NUM_STARTS = 10
TINY_LAYER = 24
"""Slots up to which replicas are also granted by chance, since all counts are soon tried."""
NUM_TINY_STARTS = 40
GOOD_ENOUGH = 1.01
"""Imbalance at which no further start is tried."""
NUM_POLISHING_STEPS = 8


def pack(current: Balance, *, seed: int, among: int) -> Balance:
    """Pack one layer anew into the slots that each rank has, and keep the best attempt.

    Small layers are also descended from what they hold, and packed from other starts drawn
    from the seed, since there the first attempt may end far from the best. Of tiny ones all
    placements are looked at.

    among    layers of the deployment
    """
    num_slots = sum(len(experts) for experts in current.ranks)
    if is_tiny(current, among=among):
        return with_fewest_moves(current, within=0.0, most=num_slots)
    if num_slots > SMALL_LAYER:
        return _better(
            current, _polished(current, current.heat, Effort(most_steps=NUM_POLISHING_STEPS))
        )
    best = descend(current, Effort())
    rng = np.random.default_rng(seed)
    by_chance = num_slots <= TINY_LAYER
    for start in range(NUM_TINY_STARTS if by_chance else NUM_STARTS):
        if best.peak <= GOOD_ENOUGH * float(best.load.mean()):
            break
        wanted = _wanted(current.heat, start, rng, by_chance=by_chance and start % 2 == 1)
        best = _better(best, _polished(current, wanted, Effort()))
    return best


def _wanted(
    heat: FloatArray, start: int, rng: np.random.Generator, *, by_chance: bool
) -> FloatArray:
    """[E] what replicas are granted by: the heat first, then with more and more noise."""
    if by_chance:
        return rng.exponential(size=len(heat))
    noise = rng.normal(scale=0.08 * (start % NUM_STARTS), size=len(heat))
    return heat * np.exp(noise)


def _polished(current: Balance, wanted: FloatArray, effort: Effort) -> Balance:
    sizes = [len(experts) for experts in current.ranks]
    ranks = place(current.heat, sizes, wanted=wanted)
    return descend(current.holding(ranks), effort)


def _better(best: Balance, other: Balance) -> Balance:
    return other if other.peak < best.peak * (1 - LEAST_GAIN) else best


def grant_replicas(heat: Sequence[float], *, num_slots: int, max_replicas: int) -> list[int]:
    """Share the slots of one layer among its experts.

    Every expert gets one slot. Each spare slot then goes to the expert whose replicas
    are hottest at that moment, until it has one on each of `max_replicas` ranks. Ties
    go to the lower expert id.

    >>> grant_replicas([6, 2, 1], num_slots=5, max_replicas=4)
    [3, 1, 1]
    """
    granted = [1] * len(heat)
    hottest = [(-tokens, expert) for expert, tokens in enumerate(heat)]
    heapq.heapify(hottest)
    for _ in range(num_slots - len(heat)):
        while hottest and granted[hottest[0][1]] >= max_replicas:
            heapq.heappop(hottest)
        if not hottest:
            break
        _, expert = hottest[0]
        granted[expert] += 1
        heapq.heapreplace(hottest, (-heat[expert] / granted[expert], expert))
    return granted


def place(
    heat: FloatArray, sizes: Sequence[int], *, wanted: FloatArray | None = None
) -> list[list[int]]:
    """Give every rank as many different experts as it has slots, its load kept low.

    Experts go heaviest replica first to the least loaded ranks with room. A replica that
    no rank with room can take is dropped, and the slot goes to the hottest expert that
    its rank lacks. Replicas are granted by `wanted` [E], where it is given, in the place
    of the heat. Needs at least one slot per expert and at most one expert per slot
    of a rank.
    """
    tokens = heat.tolist()
    granted = grant_replicas(
        tokens if wanted is None else wanted.tolist(),
        num_slots=sum(sizes),
        max_replicas=sum(size > 0 for size in sizes),
    )
    ranks: list[list[int]] = [[] for _ in sizes]
    lightest = [(0.0, rank) for rank, size in enumerate(sizes) if size]
    heapq.heapify(lightest)
    for expert in sorted(range(len(tokens)), key=lambda e: (-tokens[e] / granted[e], e)):
        takers = [heapq.heappop(lightest) for _ in range(min(granted[expert], len(lightest)))]
        granted[expert] = len(takers)
        for load, rank in takers:
            ranks[rank].append(expert)
            if len(ranks[rank]) < sizes[rank]:
                heapq.heappush(lightest, (load + tokens[expert] / granted[expert], rank))
    fill(ranks, tokens, granted, sizes)
    return ranks


def fill(
    ranks: list[list[int]], tokens: Sequence[float], granted: list[int], sizes: Sequence[int]
) -> None:
    """Fill slots left over with the hottest experts that their rank lacks."""
    for rank, size in enumerate(sizes):
        while len(ranks[rank]) < size:
            absent = [expert for expert in range(len(tokens)) if expert not in ranks[rank]]
            expert = max(absent, key=lambda e: (tokens[e] / granted[e], -e))
            ranks[rank].append(expert)
            granted[expert] += 1
