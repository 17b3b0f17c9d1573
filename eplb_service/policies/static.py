"""Staying as it is."""

from eplb_service.domain.placement import Placement
from eplb_service.policies.masking import on_active_ranks
from eplb_service.policies.request import PolicyRequest


@on_active_ranks
def static(request: PolicyRequest) -> Placement:
    """Leave everything as it is."""
    return request.placement
