"""From a load window to heat and to measured load.

Axes    L MoE layers   P slots   E logical experts   N ranks
"""

import numpy as np

from eplb_service.domain.heat import BySource, Heat, fold_slots, rank_load
from eplb_service.domain.ids import CountArray, FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.load.window import LoadWindow


def heat_of(window: LoadWindow, placement: Placement, by_source: BySource | None = None) -> Heat:
    """Fold a window's slots into tokens per routed expert.

    An expert of which some replicas sit on unknown ranks is scaled up from the known
    ones; one with no known replica is given its layer's mean. What is unknown is thus
    not taken for cold, and Heat.coverage says how much was known.
    """
    known = _known_slots(window, placement)
    tokens = fold_slots(np.where(known, window.slot_tokens, 0), placement).astype(np.float64)
    if not known.all() and known.any():
        tokens = _filled_in(tokens, fold_slots(known.astype(np.int64), placement), placement)
    return Heat(tokens, window.phase, window.num_steps, window.coverage, by_source)


def _filled_in(tokens: FloatArray, num_known: CountArray, placement: Placement) -> FloatArray:
    """Estimate the experts [L, E] of which only `num_known` replicas were heard of."""
    scaled = tokens * placement.replica_count() / np.maximum(num_known, 1)
    is_known = num_known > 0
    mean = scaled.sum(axis=1, where=is_known) / np.maximum(is_known.sum(axis=1), 1)
    return np.where(is_known, scaled, mean[:, None])


def _known_slots(
    window: LoadWindow, placement: Placement
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    known = window.is_known[placement.layout.rank_of_slot()]
    return np.broadcast_to(known, placement.phy2log.shape)


def measured_load(window: LoadWindow, placement: Placement) -> FloatArray:
    """[L, N] routed tokens that each rank computed, NaN where the rank is unknown."""
    load = rank_load(window.slot_tokens, placement)
    load[:, ~window.is_known] = np.nan
    return load


def measured_imbalance(
    window: LoadWindow,
    placement: Placement,
    *,
    speed: FloatArray | None = None,
    expert_cost: float = 0.0,
) -> FloatArray:
    """[L] peak over mean of the known ranks that hold experts, NaN where a layer has no load.

    speed          [N] as in imbalance_where_held
    expert_cost    what a slot with tokens costs its rank beside them, in tokens
    """
    costs = window.slot_tokens + expert_cost * (window.slot_tokens > 0)
    load = rank_load(costs if expert_cost else window.slot_tokens, placement)
    known = np.ones(len(window.is_known)) if speed is None else speed
    load, known = load[:, window.is_known], known[window.is_known]
    out = np.full(placement.num_layers, np.nan)
    if not load.size:
        return out
    holds = rank_load(np.ones(placement.phy2log.shape), placement)[:, window.is_known] > 0
    joint = (holds * known).sum(axis=1)
    mean = load.sum(axis=1) / np.where(joint > 0, joint, 1.0)
    return np.divide((load / known).max(axis=1), mean, out=out, where=mean > 0)
