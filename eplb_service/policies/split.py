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
from eplb_service.policies.kernels.library import Costs, best_shares
from eplb_service.policies.replicas import require_heat
from eplb_service.policies.terms import PLAIN, Terms

SLACK = 1e-3
"""What tables are drawn with: the last bit of a peak takes a third of the time, and whole sources
or rows round by more."""


def exact_split(
    heat: FloatArray, placement: Placement, *, slack: float = 0.0, terms: Terms = PLAIN
) -> FloatArray:
    """[L, P] the share of its expert's tokens that each slot takes at the lowest peak.

    heat     [L, E] tokens
    slack    part of the lowest peak that the peak may be above it
    terms    what a rank's load is made of; its turn is of no meaning here

    Shares of an expert sum to 1; where it has no tokens they are even; shared and empty slots
    have 0. Raises InvalidTable for heat that is no heat.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> p = placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3)
    >>> exact_split(np.array([[60.0, 30.0, 10.0]]), p).round(3).tolist()
    [[0.333, 1.0, 0.667, 1.0]]
    """
    require_heat(heat, placement)
    own, costs = in_mean_loads(heat, placement, terms)
    return best_shares(routed_rows(placement), begins(placement.layout), own, costs, slack=slack)


def split_imbalance(
    heat: FloatArray, placement: Placement, shares: FloatArray, terms: Terms = PLAIN
) -> FloatArray:
    """[L] peak over mean of the ranks that hold experts, under shares [L, P]; NaN without load."""
    held = np.where(placement.routed(), placement.phy2log, 0).astype(np.intp)
    own, costs = in_mean_loads(heat, placement, terms)
    load = rank_load(np.take_along_axis(own, held, axis=1) * shares, placement)
    if terms.fixed:
        load = load + costs.fixed[:, None] * rank_load(_is_active(heat, placement), placement)
    return imbalance_where_held(load, placement, costs.speed)


def cost_imbalance(
    tokens: FloatArray, heat: FloatArray, placement: Placement, terms: Terms
) -> FloatArray:
    """[L] peak over mean of what ranks with these tokens [L, N] bear; NaN without load.

    heat    [L, E], which tells what experts a rank has to have at hand
    """
    load = tokens
    if terms.fixed:
        load = load + terms.fixed * rank_load(_is_active(heat, placement), placement)
    return imbalance_where_held(load, placement, terms.speed(placement.layout.num_ranks))


def _is_active(heat: FloatArray, placement: Placement) -> FloatArray:
    """[L, P] 1 for a slot whose expert has tokens, else 0."""
    routed = placement.routed()
    held = np.where(routed, placement.phy2log, 0).astype(np.intp)
    return (routed & (np.take_along_axis(heat, held, axis=1) > 0)).astype(np.float64)


def in_mean_loads(heat: FloatArray, placement: Placement, terms: Terms) -> tuple[FloatArray, Costs]:
    """Heat [L, E] and what else counts, in mean loads of a rank; counts of any size stay finite."""
    num_ranks = placement.layout.num_ranks
    least = max(terms.fixed, np.finfo(float).tiny)
    unit = np.maximum(heat.max(axis=1, keepdims=True, initial=0.0), least)
    own, fixed = heat / unit, np.zeros(unit.shape)
    total = own.sum(axis=1, keepdims=True)
    if terms.fixed:
        fixed = np.where(total > 0, terms.fixed / unit, 0.0)
        total = total + fixed * _is_active(heat, placement).sum(axis=1, keepdims=True)
    scale = num_ranks / np.where(total > 0, total, 1.0)
    return own * scale, Costs(terms.speed(num_ranks), (fixed * scale)[:, 0])


def routed_rows(placement: Placement) -> NDArray[np.int64]:
    """[L, P] the routed expert of each slot, -1 for shared and empty ones."""
    return np.where(placement.routed(), placement.phy2log, -1).astype(np.int64)


def begins(layout: SlotLayout) -> NDArray[np.int64]:
    """[N + 1] the first slot of each rank, and the number of slots."""
    return np.cumsum((0, *layout.slots_per_rank), dtype=np.int64)
