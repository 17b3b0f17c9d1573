"""The best split of each expert's tokens over its replicas, while no weight moves.

Of all splits, the one with the lowest peak: as level as the replica graph allows, and exactly
so, in microseconds a layer; how is told in kernels/split.c.

Axes    L MoE layers   E logical experts   P slots   N ranks
"""

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.heat import imbalance_where_held, rank_load
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.policies.kernels.library import best_shares
from eplb_service.policies.replicas import require_heat

SLACK = 5e-4
"""What tables are drawn with: the last bit of a peak takes a third of the time, and whole sources
or rows round by more."""


def exact_split(heat: FloatArray, placement: Placement, *, slack: float = 0.0) -> FloatArray:
    """[L, P] the share of its expert's tokens that each slot takes at the lowest peak.

    heat     [L, E] tokens
    slack    part of the lowest peak that the peak may be above it

    Shares of an expert sum to 1; where it has no tokens they are even; shared and empty slots
    have 0. Raises InvalidTable for heat that is no heat.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> p = placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3)
    >>> exact_split(np.array([[60.0, 30.0, 10.0]]), p).round(3).tolist()
    [[0.333, 1.0, 0.667, 1.0]]
    """
    require_heat(heat, placement)
    rows = routed_rows(placement)
    heat = scaled(heat, placement.layout.num_ranks)
    return best_shares(rows, begins(placement.layout), heat, slack=slack)


def split_imbalance(heat: FloatArray, placement: Placement, shares: FloatArray) -> FloatArray:
    """[L] peak over mean of the ranks that hold experts, under shares [L, P]; NaN without load."""
    held = np.where(placement.routed(), placement.phy2log, 0).astype(np.intp)
    tokens = np.take_along_axis(heat, held, axis=1) * shares
    return imbalance_where_held(rank_load(tokens, placement), placement)


def scaled(heat: FloatArray, num_ranks: int) -> FloatArray:
    """[L, E] heat in units of the mean load of a rank; counts of any size stay finite."""
    unit = heat / np.maximum(heat.max(axis=1, keepdims=True, initial=0.0), np.finfo(float).tiny)
    total = unit.sum(axis=1, keepdims=True)
    return unit * (num_ranks / np.where(total > 0, total, 1.0))


def routed_rows(placement: Placement) -> NDArray[np.int64]:
    """[L, P] the routed expert of each slot, -1 for shared and empty ones."""
    return np.where(placement.routed(), placement.phy2log, -1).astype(np.int64)


def begins(layout: SlotLayout) -> NDArray[np.int64]:
    """[N + 1] the first slot of each rank, and the number of slots."""
    return np.cumsum((0, *layout.slots_per_rank), dtype=np.int64)
