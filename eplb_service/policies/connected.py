"""Plans for deployments whose shares can be set: what counts is the best split.

A layer whose ranks are not joined by replicated experts is packed anew so that they are: one
spare slot per rank, less one, is enough. From then on most changes of load cost no moves, and
what shares alone do not level is repaired with few.

Axes    L MoE layers   N ranks
"""

import numpy as np

from eplb_service.domain.ids import CountArray, IntArray
from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import LEAST_GAIN
from eplb_service.policies.joining import join
from eplb_service.policies.repair import Layers, look, repair
from eplb_service.policies.replicas import IndexArray, num_components
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import aligned, row_of

ACT_ABOVE = 2.25
"""In tolerances: the excess of a layer under its best split from which it is worth moves."""
REPAIR_TO = 1.75
"""In tolerances: the excess at which repairing stops, below the other so that it rests."""
FAR_APART = 2
"""Components of the replica graph beyond the fewest possible, from which a layer is packed."""


def connected(request: PolicyRequest) -> Placement:
    """Join the ranks of layers where they are apart, and repair the others; the worst first.

    A layer stays where its best split is level enough, where nothing improves it, and where
    the budget does not pay: packing a layer is paid whole or not at all.
    """
    old = request.placement
    now = look(request.heat, old)
    asked = np.array(request.layers, dtype=np.intp)
    found = asked[now.imbalance[asked] > 1 + ACT_ABOVE * request.tolerance]
    if not found.size:
        return old
    apart = found[num_components(old)[found] >= _fewest(old)[found] + FAR_APART]
    rows, left = old.phy2log.copy(), _budget(request)
    packed = _packed(request, now, apart, left) if apart.size else rows
    left -= int((packed != rows).sum())
    rest = found[(packed[found] == rows[found]).all(axis=1)]
    rows = packed
    if rest.size and left > 0:
        start = look(request.heat[rest], _of_rows(old, rows[rest].copy()))
        enough = 1 + REPAIR_TO * request.tolerance
        rows[rest] = repair(start, enough=enough, max_moves=left).placement.phy2log
    return aligned(request, rows)


def _packed(request: PolicyRequest, now: Layers, apart: IndexArray, left: int) -> IntArray:
    """[L, P] rows with these layers packed anew, those that it improves and moves can pay."""
    old = request.placement
    rows = old.phy2log.copy()
    for layer, ranks in zip(apart, join(request.heat[apart], _sizes(old)[apart]), strict=True):
        rows[layer] = row_of(ranks, rows[layer], old)
    drawn = aligned(request, rows).phy2log
    after = look(request.heat[apart], _of_rows(old, drawn[apart].copy())).imbalance
    better = apart[after < now.imbalance[apart] * (1 - LEAST_GAIN)]
    costs = (drawn != old.phy2log).sum(axis=1)
    excess = (now.imbalance - 1) * request.heat.sum(axis=1)
    rows = old.phy2log.copy()
    for layer in sorted(better.tolist(), key=lambda n: (-excess[n], n)):
        if costs[layer] <= left:
            rows[layer] = drawn[layer]
            left -= int(costs[layer])
    return rows


def _budget(request: PolicyRequest) -> int:
    # Without a limit, far more than repairing can spend.
    return 1 << 40 if request.max_moves is None else request.max_moves


def _of_rows(placement: Placement, rows: IntArray) -> Placement:
    return Placement(rows, placement.num_experts, placement.layout, placement.num_shared)


def _fewest(placement: Placement) -> IndexArray:
    """[L] components that no placement of as many slots can go below."""
    spare = placement.routed().sum(axis=1) - placement.num_experts
    return np.maximum(placement.layout.num_ranks - spare, 1)


def _sizes(placement: Placement) -> CountArray:
    """[L, N] slots of each rank that hold routed experts."""
    routed, layout = placement.routed(), placement.layout
    own = [routed[:, layout.slots_of(rank)].sum(axis=1) for rank in range(layout.num_ranks)]
    return np.stack(own, axis=1).astype(np.int64)
