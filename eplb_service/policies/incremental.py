"""Changing little: counts anew, then copies and swaps from the hottest rank, worst layers first.

For runtimes that divide an expert's tokens over its replicas by a rule of their own: what
counts is the load under that rule, in this window and, by small replicas, in the next.
"""

from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import LEAST_GAIN, Balance
from eplb_service.policies.descent import Effort, descend, num_changed
from eplb_service.policies.lpt import TINY_LAYER, pack
from eplb_service.policies.masking import on_active_ranks
from eplb_service.policies.recount import recount, take_back, water_level
from eplb_service.policies.request import PolicyRequest, predicted_load
from eplb_service.policies.rows import aligned, ranks_of, row_of
from eplb_service.policies.tiny import is_tiny, with_fewest_moves

STOP_AT = 1.97
"""In tolerances: the excess of a layer at which changing it stops."""
HEADROOM = 0.1
"""Above the lowest possible heat of the hottest replica: counts within it are left alone."""
STUCK = 1.05
"""Imbalance above which a layer that no single change improves is packed anew, budget allowing."""
TINY_EXCESS = 0.005
"""Above the lowest peak, that a layer small enough to look at all placements stops at."""
LARGE_LAYER = 512
"""Slots above which no layer is also descended without counting anew: it ends far behind there."""
REPACK_GAIN = 0.98
"""Of the peak, that packing anew must stay below to be worth its moves."""


@on_active_ranks
def incremental(request: PolicyRequest) -> Placement:
    """Lower the peaks with as few moves as it takes; never a worse peak in any layer."""
    phy2log = request.placement.phy2log.copy()
    load = predicted_load(request.heat, request.placement, request.split, request.terms)
    excess = load.max(axis=1) - load.mean(axis=1)
    left = phy2log.size if request.max_moves is None else request.max_moves
    for layer in sorted(request.layers, key=lambda n: (-excess[n], n)):
        enough = (1 + STOP_AT * request.tolerance) * float(load[layer].mean())
        if left < 1 or load[layer].max() <= enough:
            continue
        current = ranks_of(phy2log[layer], request.placement)
        before = Balance(request.heat[layer], current, request.split, request.terms)
        after = _improved(request, before, enough=enough, left=left)
        left -= num_changed(before, after)
        phy2log[layer] = row_of(after.ranks, phy2log[layer], request.placement)
    return aligned(request, phy2log)


def _improved(request: PolicyRequest, before: Balance, *, enough: float, left: int) -> Balance:
    """Change one layer; the lowest peak of: counted anew, as counted, packed anew."""
    among = request.placement.num_layers
    num_slots = sum(len(held) for held in before.ranks)
    highest = (1 + HEADROOM) * water_level(
        before.heat, num_slots=num_slots, max_replicas=sum(map(bool, before.ranks))
    )
    if is_tiny(before, among=among):
        best = with_fewest_moves(before, within=TINY_EXCESS, most=left)
        return best if best.peak < before.peak * (1 - LEAST_GAIN) else before
    effort = Effort(max_moves=left, enough=enough)
    best = before
    for start in (recount(before, highest=highest, most_moves=left), before):
        after = descend(start, effort, since=before)
        if after.peak < best.peak * (1 - LEAST_GAIN):
            best = after
        is_met = best.peak <= enough and num_slots > TINY_LAYER
        if is_met or (num_slots > LARGE_LAYER and best is not before):
            break
    if best.peak > STUCK * float(best.load.mean()):
        packed = pack(before, seed=request.seed, among=among)
        if packed.peak < REPACK_GAIN * best.peak and num_changed(before, packed) <= left:
            best = descend(packed, effort, since=before)
    if best is not before:
        best = take_back(best, before, limit=max(enough, best.peak), highest=highest)
    return best
