"""Layers so small that every placement can be looked at: for each number of moves the best.

Axes    E logical experts   N ranks   K sets of experts that a rank may hold
"""

from itertools import combinations
from math import comb, prod

import numpy as np

from eplb_service.policies.balance import Balance
from eplb_service.policies.kernels.even import Options, tried_all

MOST_EXPERTS = 16
MOST_PLACEMENTS = 25_000_000
"""Of all layers of a deployment, up to which all are looked at; most are passed over unseen."""


def is_tiny(balance: Balance, *, among: int) -> bool:
    """Whether all placements can be looked at that leave ranks as full as they are.

    among    layers of the deployment, of which others may be as large
    """
    num_experts = len(balance.heat)
    placements = prod(comb(num_experts, len(held)) for held in balance.ranks)
    return num_experts <= MOST_EXPERTS and 0 < placements * among <= MOST_PLACEMENTS


def with_fewest_moves(balance: Balance, *, within: float, most: int) -> Balance:
    """Find the fewest moves that come as near as asked to the lowest peak of up to `most` moves.

    within    0.005 for a peak at most half a percent above it
    """
    options = [_options(held, len(balance.heat)) for held in balance.ranks]
    wanted = sum(1 << expert for expert, holders in enumerate(balance.holders) if holders)
    most = min(most, sum(len(held) for held in balance.ranks))
    peaks, rows = tried_all(balance.layer, options, wanted=wanted, most=most)
    fewest = int((peaks <= peaks[-1] * (1 + within)).argmax())
    ranks = [
        _in_place(held, [expert for expert in range(len(balance.heat)) if row >> expert & 1])
        for held, row in zip(balance.ranks, rows[fewest].tolist(), strict=True)
    ]
    return balance.holding(ranks)


def _options(held: list[int], num_experts: int) -> Options:
    """List all sets of as many experts, those of fewest moves first."""
    now = sum(1 << expert for expert in held)
    drawn = (sum(1 << e for e in s) for s in combinations(range(num_experts), len(held)))
    sets = sorted(((option & ~now).bit_count(), option) for option in drawn)
    moves, experts = zip(*sets, strict=True)
    return Options(np.array(experts, np.int64), np.array(moves, np.int64))


def _in_place(before: list[int], after: list[int]) -> list[int]:
    """Order what a rank holds: what stays at its place, what comes at the places left."""
    coming = iter([expert for expert in after if expert not in before])
    return [expert if expert in after else next(coming) for expert in before]
