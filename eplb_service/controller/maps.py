"""From an expert-map file to a target placement for one deployment."""

from eplb_service.controller.deployment import Deployment
from eplb_service.domain.errors import NotReady
from eplb_service.domain.map_file import parse_map, placement_of, reshaped
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import require_fit


def placement_in(deployment: Deployment, text: str, *, reshape: bool) -> Placement:
    """Read a file for this deployment.

    Raises InvalidMapFile, or MisfitPlacement when it was made for another shape and
    `reshape` does not ask to deal its slots out anew.
    """
    state = deployment.driver.state
    if state.membership is None:
        raise NotReady(f"no rank of {deployment.name} has registered; a map cannot be held to it")
    shape, serving = state.membership.shape, state.serving.placement
    target = placement_of(
        parse_map(text),
        model_layers=shape.layers,
        num_experts=shape.num_experts,
        num_shared=serving.num_shared,
    )
    if reshape:
        target = reshaped(target, serving.layout)
    require_fit(target, serving)
    return target
