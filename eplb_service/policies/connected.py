"""Plans for deployments whose shares can be set: what counts is the best split.

A layer whose ranks are not joined by replicated experts is packed anew so that they are: one
spare slot per rank, less one, is enough. From then on most changes of load cost no moves, and
what shares alone do not level is repaired with few.

Axes    L MoE layers   P slots   N ranks
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import LEAST_GAIN
from eplb_service.policies.kernels.library import (
    Costs,
    Limits,
    Numbers,
    best_level,
    num_parts,
    packed,
    repaired,
)
from eplb_service.policies.masking import on_active_ranks
from eplb_service.policies.replicas import IndexArray, require_heat
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import aligned
from eplb_service.policies.split import begins, in_mean_loads, routed_rows

ACT_ABOVE = 1.9
"""In tolerances: the excess of a layer under its best split from which it is worth moves."""
REPAIR_TO = 1.7
"""In tolerances: the excess at which repairing stops, below the other so that it rests."""
EVEN_CAP = 1.1
"""Imbalance under an even split that repairs avoid, so that a fallback to it stays decent."""
EVEN_PRICE = 0.02
"""What load above that cap counts as, beside load above the limit."""
BREAKING = 0.02
"""Load that one more component of the replica graph counts as, in mean loads of a rank."""
FAR_APART = 2
"""Components of the replica graph beyond the fewest possible, and at least a quarter of the ranks,
from which a layer is packed: mending a few is cheaper than packing, joining many is not."""
UNLIMITED = 1 << 40
"""Far more moves than there are slots."""


class _Task(NamedTuple):
    """What the kernels take."""

    rows: Numbers
    """[L, P] routed expert of each slot, -1 for others."""
    begin: Numbers
    """[N + 1] first slot of each rank."""
    heat: FloatArray
    """[L, E] in mean loads of a rank."""
    costs: Costs
    limits: Limits

    def of(self, layers: IndexArray) -> tuple[Numbers, Numbers, FloatArray]:
        """Some of the layers."""
        return self.rows[layers], self.begin, self.heat[layers]


@on_active_ranks
def connected(request: PolicyRequest) -> Placement:
    """Join the ranks of layers where they are apart, and repair the others; the worst first.

    A layer stays where its best split is level enough, where nothing improves it, and where
    the budget does not pay: packing a layer is paid whole or not at all. Raises InvalidTable
    for heat that is no heat.
    """
    old = request.placement
    require_heat(request.heat, old)
    task = _task(request)
    asked = np.array(request.layers, dtype=np.intp)
    peaks = np.zeros(len(task.rows))
    act_above = task.limits.act_above
    costs = task.costs.of_layers(asked)
    _, peaks[asked] = best_level(*task.of(asked), costs, enough=act_above)
    excess = (peaks - 1) * (request.heat / old.num_experts).sum(axis=1)
    order = asked[np.lexsort((asked, -excess[asked]))]
    found = order[peaks[order] > act_above * (1 + LEAST_GAIN)]
    if not found.size:
        return old
    left = UNLIMITED if request.max_moves is None else request.max_moves
    parts = num_parts(task.rows[found], task.begin, old.num_experts)
    far = max(FAR_APART, (len(task.begin) - 1) // 4)
    apart = found[parts >= _fewest(task)[found] + far]
    rows = _packed(request, task, apart, peaks, left) if apart.size else old.phy2log
    left -= int((rows != old.phy2log).sum())
    rest = found[(rows[found] == old.phy2log[found]).all(axis=1)]
    budget = (UNLIMITED, left)
    better, _ = repaired(task.of(rest), task.costs.of_layers(rest), task.limits, budget)
    drawn = rows.copy()
    drawn[rest] = np.where(better >= 0, better, rows[rest])
    return aligned(request, drawn)


def _task(request: PolicyRequest) -> _Task:
    placement = request.placement
    heat, costs = in_mean_loads(request.heat, placement, request.terms)
    is_used = np.array(placement.layout.slots_per_rank) > 0
    mean = placement.layout.num_ranks / (float(costs.speed[is_used].sum()) or 1.0)
    limits = Limits(
        act_above=mean * (1 + ACT_ABOVE * request.tolerance),
        repair_to=mean * (1 + REPAIR_TO * request.tolerance),
        even_cap=mean * EVEN_CAP,
        breaking=BREAKING,
        even_price=EVEN_PRICE,
    )
    return _Task(routed_rows(placement), begins(placement.layout), heat, costs, limits)


def _packed(
    request: PolicyRequest, task: _Task, apart: IndexArray, peaks: FloatArray, left: int
) -> NDArray[np.int32]:
    """[L, P] rows with these layers packed anew, those that it improves and moves can pay.

    What is packed is repaired before it is weighed: its moves are paid anyway.
    """
    old = request.placement
    begin = task.begin
    routed = task.rows[apart] >= 0
    sizes = np.add.reduceat(np.pad(routed, ((0, 0), (0, 1))), begin, axis=1, dtype=np.int64)
    sizes = np.where(np.diff(begin) > 0, sizes[:, :-1], 0)
    anew = task.rows[apart].copy()
    costs = task.costs.of_layers(apart)
    dense = packed(sizes, task.heat[apart], costs, is_joined=True)
    anew[routed] = dense[np.arange(dense.shape[1]) < sizes.sum(axis=1, keepdims=True)]
    free = (UNLIMITED, UNLIMITED)
    anew, after = repaired((anew, begin, task.heat[apart]), costs, task.limits, free)
    wanted = old.phy2log.copy()
    wanted[apart] = np.where(anew >= 0, anew, wanted[apart])
    drawn = aligned(request, wanted).phy2log
    num_moved = (drawn != old.phy2log).sum(axis=1)
    rows = old.phy2log.copy()
    for layer, peak in zip(apart.tolist(), after.tolist(), strict=True):
        if peak < peaks[layer] * (1 - LEAST_GAIN) and num_moved[layer] <= left:
            rows[layer] = drawn[layer]
            left -= int(num_moved[layer])
    return rows


def _fewest(task: _Task) -> IndexArray:
    """[L] components that no placement of as many slots can go below."""
    spare = (task.rows >= 0).sum(axis=1) - task.heat.shape[1]
    num_used = int((np.diff(task.begin) > 0).sum())
    return np.maximum(num_used - spare, 1)
