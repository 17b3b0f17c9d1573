"""A full plan for deployments whose shares can be set: what counts is the best split.

The layers that shares alone cannot level are packed anew so that replicated experts join the
ranks. One spare slot per rank, less one, is enough to join them all; from then on most changes
of load cost no moves.

Axes    L MoE layers   N ranks
"""

import numpy as np

from eplb_service.domain.ids import CountArray, FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import LEAST_GAIN
from eplb_service.policies.joining import join
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import aligned, row_of
from eplb_service.policies.split import exact_split, split_imbalance


def connected(request: PolicyRequest) -> Placement:
    """Pack layers anew that are out of balance even under their best split, the worst first.

    A layer stays where packing would not improve it, or where the budget cannot pay it whole.
    """
    old = request.placement
    before = _best_imbalance(request, old)
    asked = np.array(request.layers, dtype=np.intp)
    found = asked[before[asked] > 1 + request.tolerance]
    if not found.size:
        return old
    phy2log = old.phy2log.copy()
    for layer, ranks in zip(found, join(request.heat[found], _sizes(old)[found]), strict=True):
        phy2log[layer] = row_of(ranks, phy2log[layer], old)
    drawn = aligned(request, phy2log)
    after = _best_imbalance(request, drawn)
    costs = (drawn.phy2log != old.phy2log).sum(axis=1)
    left = old.phy2log.size if request.max_moves is None else request.max_moves
    phy2log = old.phy2log.copy()
    excess = (before - 1) * request.heat.sum(axis=1)
    for layer in sorted(found.tolist(), key=lambda n: (-excess[n], n)):
        if costs[layer] <= left and after[layer] < before[layer] * (1 - LEAST_GAIN):
            phy2log[layer] = drawn.phy2log[layer]
            left -= int(costs[layer])
    return aligned(request, phy2log)


def _best_imbalance(request: PolicyRequest, placement: Placement) -> FloatArray:
    """[L] under the best split; 0 where there is no load, so that silent layers stay."""
    split = exact_split(request.heat, placement)
    return np.nan_to_num(split_imbalance(request.heat, placement, split))


def _sizes(placement: Placement) -> CountArray:
    """[L, N] slots of each rank that hold routed experts."""
    routed, layout = placement.routed(), placement.layout
    own = [routed[:, layout.slots_of(rank)].sum(axis=1) for rank in range(layout.num_ranks)]
    return np.stack(own, axis=1).astype(np.int64)
