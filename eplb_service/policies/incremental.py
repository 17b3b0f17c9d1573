"""Changing little: copies and swaps from the hottest rank, worst layers first, under a budget."""

from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import Balance
from eplb_service.policies.descent import Effort, descend, num_changed
from eplb_service.policies.lpt import pack
from eplb_service.policies.request import PolicyRequest, predicted_load
from eplb_service.policies.rows import aligned, ranks_of, row_of

STUCK = 1.05
"""Imbalance above which a layer that no single change improves is packed anew, budget allowing."""
REPACK_GAIN = 0.98
"""Of the peak, that packing anew must stay below to be worth its moves."""


def incremental(request: PolicyRequest) -> Placement:
    """Lower the peaks with as few moves as it takes; never a worse peak in any layer."""
    phy2log = request.placement.phy2log.copy()
    load = predicted_load(request.heat, request.placement, request.split)
    excess = load.max(axis=1) - load.mean(axis=1)
    left = phy2log.size if request.max_moves is None else request.max_moves
    for layer in sorted(request.layers, key=lambda n: (-excess[n], n)):
        enough = (1 + request.tolerance) * float(load[layer].mean())
        if left < 1 or load[layer].max() <= enough:
            continue
        current = ranks_of(phy2log[layer], request.placement)
        before = Balance(request.heat[layer], current, request.split)
        after = _improved(before, enough=enough, left=left, seed=request.seed)
        left -= num_changed(before, after)
        phy2log[layer] = row_of(after.ranks, phy2log[layer], request.placement)
    return aligned(request, phy2log)


def _improved(before: Balance, *, enough: float, left: int, seed: int) -> Balance:
    after = descend(before, Effort(max_moves=left, enough=enough))
    if after.peak > STUCK * float(after.load.mean()):
        packed = pack(before, seed=seed)
        if packed.peak < REPACK_GAIN * after.peak and num_changed(before, packed) <= left:
            return packed
    return after
