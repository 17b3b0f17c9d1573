"""Hierarchical packing: groups of experts to nodes, then experts to the ranks of their node.

After DeepSeek's EPLB, and polished. It suits routers that limit each token to a few groups,
where the network between nodes is the bottleneck.
"""

from dataclasses import replace

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import Balance
from eplb_service.policies.groups import experts_of_nodes, misfit
from eplb_service.policies.lpt import pack, place
from eplb_service.policies.masking import on_active_ranks
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import layer_by_layer
from eplb_service.policies.terms import Terms


@on_active_ranks
def hierarchical(request: PolicyRequest) -> Placement:
    """Pack every layer, groups to nodes first; raises InvalidSettings where that cannot be."""
    reason = misfit(request)
    if reason:
        raise InvalidSettings(f"hierarchical packing does not fit: {reason}; use packing")

    def pack_layer(_: int, before: Balance) -> Balance:
        return Balance(before.heat, _pack_nodes(request, before), request.split, request.terms)

    return layer_by_layer(request, pack_layer)


def _pack_nodes(request: PolicyRequest, before: Balance) -> list[list[int]]:
    sizes = [len(experts) for experts in before.ranks]
    ranks: list[list[int]] = [[] for _ in sizes]
    among = request.placement.num_layers * len(set(request.nodes))
    for members, experts in experts_of_nodes(request, before.heat):
        own = before.heat[experts]
        start = Balance(
            own,
            place(own, [sizes[rank] for rank in members]),
            request.split,
            _terms_of(request, members),
        )
        packed = pack(start, seed=request.seed, among=among)
        for rank, held in zip(members, packed.ranks, strict=True):
            ranks[rank] = [experts[expert] for expert in held]
    return ranks


def _terms_of(request: PolicyRequest, members: list[int]) -> Terms:
    """Terms for the ranks of one node, whose experts are numbered anew."""
    speeds = tuple(request.terms.speeds[rank] for rank in members if request.terms.speeds)
    return replace(request.terms, turn=0, speeds=speeds)
