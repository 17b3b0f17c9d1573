"""Expert groups on nodes, for routers that limit each token to a few groups.

After DeepSeek's EPLB: groups go to nodes, heaviest first, so that a token's few groups lie
on few nodes.
"""

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.lpt import place
from eplb_service.policies.request import PolicyRequest


def misfit(request: PolicyRequest) -> str:
    """Say why groups cannot be given to nodes; empty where they can."""
    nodes, groups = sorted(set(request.nodes)), request.num_groups
    placement = request.placement
    if len(nodes) < 2 or groups < 2:
        return f"{len(nodes)} nodes and {groups} expert groups; expected two or more of each"
    if groups % len(nodes) or placement.num_experts % groups:
        return (
            f"{groups} groups do not divide over {len(nodes)} nodes, or {placement.num_experts} "
            f"experts over {groups} groups"
        )
    sizes = [request.nodes.count(node) for node in nodes]
    if len(set(sizes)) > 1:
        return f"nodes have {sizes} ranks; expected as many on each"
    share = placement.num_experts // len(nodes)
    return _misfit_of_slots(request, nodes, share)


def _misfit_of_slots(request: PolicyRequest, nodes: list[str], share: int) -> str:
    """Every node must hold its share of the experts, none of them twice on a rank."""
    routed = request.placement.routed()
    ranks = request.placement.layout.rank_of_slot()
    for rank, node in enumerate(request.nodes):
        most = int(routed[:, ranks == rank].sum(axis=1).max(initial=0))
        if most > share:
            return f"rank {rank} has {most} slots, node {node} only {share} experts"
    for node in nodes:
        own = np.array([name == node for name in request.nodes])[ranks]
        least = int(routed[:, own].sum(axis=1).min(initial=share))
        if least < share:
            return f"node {node} has {least} slots for {share} experts"
    return ""


def experts_of_nodes(request: PolicyRequest, heat: FloatArray) -> list[tuple[list[int], list[int]]]:
    """Give every node of one layer whole groups of experts: its ranks, and its experts.

    heat    [E]

    Experts are listed group by group, in the order in which the groups were given.
    """
    nodes = sorted(set(request.nodes))
    per_group = len(heat) // request.num_groups
    groups = heat.reshape(request.num_groups, per_group).sum(axis=1)
    given = place(groups, [request.num_groups // len(nodes)] * len(nodes))
    return [
        (
            [rank for rank, name in enumerate(request.nodes) if name == node],
            [group * per_group + nth for group in own for nth in range(per_group)],
        )
        for node, own in zip(nodes, given, strict=True)
    ]
