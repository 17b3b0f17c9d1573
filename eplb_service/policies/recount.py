"""Counting the replicas of one layer anew, with few moves, and taking back what was needless.

Small replicas are what keeps the next window level: the hotter a replica, the more its rank
gains or loses when its expert does. But a replica more is a move, so counts that are nearly
right are left alone.
"""

import heapq

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.balance import Balance
from eplb_service.policies.kernels.even import recounted, taken_back

MOST_PAIRS = 10_000
"""Pairs of changes that are tried when changes are taken back."""


def water_level(heat: FloatArray, *, num_slots: int, max_replicas: int) -> float:
    """Heat of the hottest replica, were so many slots shared out as well as can be.

    >>> import numpy as np
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


def recount(balance: Balance, *, highest: float, most_moves: int) -> Balance:
    """Give replicas to experts whose replicas are hotter than `highest`, one move each.

    A replica takes the place of one whose expert stays below that limit without it, on the
    rank that is then the least loaded; ties go to the lower rank and slot.
    """
    ranks = recounted(balance.layer, highest=highest, most_moves=most_moves)
    return balance.holding(ranks)


def take_back(balance: Balance, start: Balance, *, limit: float, highest: float) -> Balance:
    """Take back changes since `start` without which no peak passes the limit.

    Single changes are tried first, then two at a time. No expert is left with replicas hotter
    than `highest` that it would not have had at the start either.
    """
    ranks = taken_back(
        balance.layer, start.ranks, limit=limit, highest=highest, most_pairs=MOST_PAIRS
    )
    return balance.holding(ranks)
