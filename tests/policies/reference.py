"""The compiled loops of even mode over again, as plainly as they can be told; slow.

What a layer would come to after a change is computed anew from all its replicas.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from eplb_service.policies.balance import LEAST_GAIN, Balance
from eplb_service.policies.descent import SPREAD_WEIGHT, Effort, num_changed

Change = tuple[int, int, int]
"""A rank, the expert that goes and the one that comes."""
NUM_TRIED = 24


def changed(balance: Balance, changes: tuple[Change, ...]) -> Balance:
    ranks = [list(held) for held in balance.ranks]
    for rank, out, into in changes:
        ranks[rank][ranks[rank].index(out)] = into
    return balance.holding(ranks)


def badness(balance: Balance, enough: float) -> float:
    spread = float(np.sqrt(np.mean(balance.load**2)))
    return max(balance.peak, enough) + SPREAD_WEIGHT * spread


def candidates(balance: Balance) -> Iterator[tuple[Change, ...]]:
    """All changes of the fullest rank, in the order that decides ties."""
    hot = int(balance.load.argmax())
    for expert in balance.ranks[hot]:
        for rank, held in enumerate(balance.ranks):
            for other in held if expert not in held else ():
                if len(balance.holders[other]) > 1 and balance.heat[expert] > 0:
                    yield ((rank, other, expert),)
                if other not in balance.ranks[hot]:
                    yield (hot, expert, other), (rank, other, expert)
        if len(balance.holders[expert]) > 1:
            for other, holders in enumerate(balance.holders):
                if holders and hot not in holders:
                    yield ((hot, expert, other),)


def descend(start: Balance, effort: Effort) -> Balance:
    state = best = start
    for _ in range(effort.most_steps):
        left = None
        if effort.max_moves is not None:
            left = effort.max_moves - num_changed(start, state)
        if best.peak <= effort.enough or (left is not None and left < 1):
            break
        after = best_change(state, left, effort.enough)
        if after is None:
            break
        state = after
        if state.peak < best.peak * (1 - LEAST_GAIN):
            best = state
    return best


def best_change(state: Balance, left: int | None, enough: float) -> Balance | None:
    promising: list[tuple[float, int, Balance]] = []
    for changes in candidates(state):
        if left is not None and len(changes) > left:
            continue
        after = changed(state, changes)
        experts = {expert for change in changes for expert in change[1:]}
        ranks = [r for e in experts for r in (*state.holders[e], *after.holders[e])]
        reached = float(after.load[ranks].max())
        worth = state.peak - max(reached, enough) + SPREAD_WEIGHT * (state.peak - reached)
        moves = 1 if left is None else len(changes)
        if worth > 0:
            promising.append((worth / moves, moves, after))
    promising.sort(key=lambda tried: -tried[0])
    best, best_gain = None, LEAST_GAIN * float(state.load.mean())
    for _, moves, after in promising[:NUM_TRIED]:
        gain = (badness(state, enough) - badness(after, enough)) / moves
        if after.peak <= state.peak and gain > best_gain:
            best, best_gain = after, gain
    return best


def recount(balance: Balance, *, highest: float, most_moves: int) -> Balance:
    for _ in range(most_moves):
        num_ranks, counts = len(balance.ranks), [len(h) for h in balance.holders]
        growing = [e for e, count in enumerate(counts) if 0 < count < num_ranks]
        expert = max(growing, key=lambda e: balance.heat[e] / counts[e], default=None)
        if expert is None or balance.heat[expert] <= highest * counts[expert]:
            break
        places = [
            (rank, out)
            for rank, held in enumerate(balance.ranks)
            for out in (held if expert not in held else ())
            if counts[out] > 1 and balance.heat[out] <= highest * (counts[out] - 1)
        ]
        if not places:
            break
        grown = [(rank, changed(balance, ((rank, out, expert),))) for rank, out in places]
        balance = min(grown, key=lambda option: option[1].load[option[0]])[1]
    return balance


def take_back(balance: Balance, start: Balance, *, limit: float, highest: float) -> Balance:
    for count in (1, 2):
        slots = [
            (rank, now, was)
            for rank, held in enumerate(zip(balance.ranks, start.ranks, strict=True))
            for now, was in zip(*held, strict=True)
            if now != was
        ]
        for changes in combinations(slots, count):
            if any(w in balance.ranks[r] or n not in balance.ranks[r] for r, n, w in changes):
                continue
            after = changed(balance, changes)
            counts = [(after.heat[now], len(after.holders[now])) for _, now, _ in changes]
            is_cool = all(held and heat <= highest * held for heat, held in counts)
            if is_cool and after.peak <= limit * (1 + LEAST_GAIN):
                balance = after
    return balance
