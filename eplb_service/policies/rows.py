"""From rows of slots to experts by rank and back; shared and empty slots are left alone.

Axes    L MoE layers   P slots
"""

from collections.abc import Callable

from eplb_service.domain.ids import IntArray
from eplb_service.domain.moves import align
from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import LEAST_GAIN, Balance
from eplb_service.policies.request import PolicyRequest


def layer_by_layer(request: PolicyRequest, improve: Callable[[int, Balance], Balance]) -> Placement:
    """Improve each layer by itself; what is balanced, or would not improve, stays."""
    phy2log = request.placement.phy2log.copy()
    for layer in request.layers:
        current = ranks_of(phy2log[layer], request.placement)
        before = Balance(request.heat[layer], current, request.split, request.terms)
        if before.peak <= (1 + request.tolerance) * before.load.mean():
            continue
        after = improve(layer, before)
        if after.peak < before.peak * (1 - LEAST_GAIN):
            phy2log[layer] = row_of(after.ranks, phy2log[layer], request.placement)
    return aligned(request, phy2log)


def aligned(request: PolicyRequest, phy2log: IntArray) -> Placement:
    """Build the placement of these rows [L, P], each expert that stays in its slot."""
    old = request.placement
    return align(old, Placement(phy2log, old.num_experts, old.layout, old.num_shared))


def ranks_of(row: IntArray, placement: Placement) -> list[list[int]]:
    """Routed experts of each rank in one layer's row [P], in slot order."""
    layout = placement.layout
    own = (row[layout.slots_of(rank)].tolist() for rank in range(layout.num_ranks))
    return [[e for e in experts if 0 <= e < placement.num_experts] for experts in own]


def row_of(ranks: list[list[int]], row: IntArray, placement: Placement) -> IntArray:
    """[P] the row with its routed slots filled anew by rank; other slots as they are."""
    out = row.copy()
    out[(row >= 0) & (row < placement.num_experts)] = [e for experts in ranks for e in experts]
    return out
