"""Packing from scratch over all ranks, whatever is served now."""

from eplb_service.domain.placement import Placement
from eplb_service.policies.lpt import pack
from eplb_service.policies.masking import on_active_ranks
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import layer_by_layer


@on_active_ranks
def packing(request: PolicyRequest) -> Placement:
    """Pack every layer that is out of balance; one that would not improve stays as it is."""
    return layer_by_layer(
        request,
        lambda _, before: pack(before, seed=request.seed, among=request.placement.num_layers),
    )
