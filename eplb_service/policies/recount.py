"""Counting the replicas of one layer anew, with few moves, and taking back what was needless.

Small replicas are what keeps the next window level: the hotter a replica, the more its rank
gains or loses when its expert does. But a replica more is a move, so counts that are nearly
right are left alone.

Axes    E logical experts   N ranks
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.balance import Balance, Replaced

Ranks = Sequence[Sequence[int]]
MOST_PAIRS = 1000
"""Pairs of changes that are tried when changes are taken back."""


@dataclass(frozen=True, slots=True)
class Undone:
    """One change, and the change that takes it back."""

    rank: int
    was: int
    now: int


def water_level(heat: FloatArray, *, num_slots: int, max_replicas: int) -> float:
    """Heat of the hottest replica, were so many slots shared out as well as can be.

    >>> water_level(np.array([6.0, 2.0, 1.0]), num_slots=5, max_replicas=4)
    2.0
    """
    hottest = [(-tokens, expert, 1) for expert, tokens in enumerate(heat.tolist())]
    heapq.heapify(hottest)
    for _ in range(num_slots - len(heat)):
        _, expert, count = hottest[0]
        if count >= max_replicas:
            break
        heapq.heapreplace(hottest, (-float(heat[expert]) / (count + 1), expert, count + 1))
    return -hottest[0][0]


def recount(balance: Balance, *, highest: float, most_moves: int) -> None:
    """Give replicas to experts whose replicas are hotter than `highest`, one move each.

    A replica takes the place of one whose expert stays below that limit without it, on the
    rank that is then the least loaded; ties go to the lower rank and expert.
    """
    counts = np.array([len(holders) for holders in balance.holders])
    for _ in range(most_moves):
        can_grow = (counts > 0) & (counts < len(balance.ranks))
        each = np.where(can_grow, balance.heat / np.maximum(counts, 1), -1.0)
        expert = int(each.argmax())
        if each[expert] <= highest:
            return
        found = _place_for(balance, expert, counts.tolist(), highest)
        if found is None:
            return
        balance.apply((found,))
        counts[found.out] -= 1
        counts[expert] += 1


def _place_for(
    balance: Balance, expert: int, counts: Sequence[int], highest: float
) -> Replaced | None:
    options = [
        (rank, out)
        for rank, out in balance.replicated()
        if out != expert
        and rank not in balance.holders[expert]
        and balance.heat[out] <= highest * (counts[out] - 1)
    ]
    if not options:
        return None
    ranks = [rank for rank, _ in options]
    added = balance.added(expert, ranks)[np.arange(len(ranks)), ranks]
    freed = np.array([balance.dropped(out, rank)[rank] for rank, out in options])
    then = balance.load[ranks] + added + freed
    best = min(range(len(options)), key=lambda n: (float(then[n]), *options[n]))
    return Replaced(options[best][0], options[best][1], expert)


def take_back(balance: Balance, start: Ranks, *, limit: float, highest: float) -> None:
    """Take back changes since `start` without which no peak passes the limit.

    Single changes are tried first, then two at a time. No expert is left with replicas hotter
    than `highest` that it would not have had at the start either.
    """
    for change in _changes(balance, start):
        _try(balance, (change,), limit, highest)
    pairs = combinations(_changes(balance, start), 2)
    for _, pair in zip(range(MOST_PAIRS), pairs, strict=False):
        if all(change.now in balance.ranks[change.rank] for change in pair):
            _try(balance, pair, limit, highest)


def _changes(balance: Balance, start: Ranks) -> list[Undone]:
    found: list[Undone] = []
    for rank, (now, then) in enumerate(zip(balance.ranks, start, strict=True)):
        gained = sorted(set(now) - set(then))
        lost = sorted(set(then) - set(now))
        found += [Undone(rank, was, expert) for was, expert in zip(lost, gained, strict=True)]
    return found


def _try(balance: Balance, changes: Sequence[Undone], limit: float, highest: float) -> None:
    """Take these changes back, all or none."""
    if any(change.was in balance.ranks[change.rank] for change in changes):
        return
    freed = {change.now for change in changes}
    back = tuple(Replaced(change.rank, change.now, change.was) for change in changes)
    balance.apply(back)
    counts = {expert: len(balance.holders[expert]) for expert in freed}
    is_good = all(n and balance.heat[e] <= highest * n for e, n in counts.items())
    if not is_good or balance.peak > limit:
        balance.apply(tuple(Replaced(b.rank, b.into, b.out) for b in back))
