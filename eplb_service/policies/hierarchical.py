"""Hierarchical packing: groups of experts to nodes, then experts to the ranks of their node.

After DeepSeek's EPLB. It suits routers that limit each token to a few groups, where
the network between nodes is the bottleneck.
"""

import numpy as np

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import Balance
from eplb_service.policies.lpt import pack, place
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import layer_by_layer


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


def hierarchical(request: PolicyRequest) -> Placement:
    """Pack every layer, groups to nodes first; raises InvalidSettings where that cannot be."""
    reason = misfit(request)
    if reason:
        raise InvalidSettings(f"hierarchical packing does not fit: {reason}; use packing")

    def pack_layer(layer: int, before: Balance) -> Balance:
        heat = request.heat[layer]
        return Balance(heat, _pack_nodes(request, heat, before), request.split)

    return layer_by_layer(request, pack_layer)


def _pack_nodes(request: PolicyRequest, heat: FloatArray, before: Balance) -> list[list[int]]:
    sizes = [len(experts) for experts in before.ranks]
    nodes = sorted(set(request.nodes))
    per_group = len(heat) // request.num_groups
    groups = heat.reshape(request.num_groups, per_group).sum(axis=1)
    given = place(groups, [request.num_groups // len(nodes)] * len(nodes))
    ranks: list[list[int]] = [[] for _ in sizes]
    for node, own_groups in zip(nodes, given, strict=True):
        members = [rank for rank, name in enumerate(request.nodes) if name == node]
        experts = [g * per_group + k for g in sorted(own_groups) for k in range(per_group)]
        own = heat[experts]
        start = Balance(own, place(own, [sizes[rank] for rank in members]), request.split)
        for rank, held in zip(members, pack(start, seed=request.seed).ranks, strict=True):
            ranks[rank] = [experts[expert] for expert in held]
    return ranks
