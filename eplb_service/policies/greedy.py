"""Baselines: greedy replication and longest-first packing, blind to what is served.

After the two modes of DeepSeek's EPLB (github.com/deepseek-ai/EPLB), except that no rank
ever holds an expert twice. They polish nothing and spare no move; other policies are
measured against them.
"""

from collections.abc import Callable

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.policies.groups import experts_of_nodes, misfit
from eplb_service.policies.lpt import place
from eplb_service.policies.masking import on_active_ranks
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import aligned, ranks_of, row_of


@on_active_ranks
def greedy(request: PolicyRequest) -> Placement:
    """Pack every layer with load over all ranks, whatever it wins."""
    return _anew(request, place)


@on_active_ranks
def greedy_by_node(request: PolicyRequest) -> Placement:
    """Pack groups of experts to nodes first; raises InvalidSettings where that cannot be."""
    reason = misfit(request)
    if reason:
        raise InvalidSettings(f"packing by node does not fit: {reason}; use greedy")
    return _anew(request, lambda heat, sizes: _by_node(request, heat, sizes))


def _by_node(request: PolicyRequest, heat: FloatArray, sizes: list[int]) -> list[list[int]]:
    ranks: list[list[int]] = [[] for _ in sizes]
    for members, experts in experts_of_nodes(request, heat):
        packed = place(heat[experts], [sizes[rank] for rank in members])
        for rank, held in zip(members, packed, strict=True):
            ranks[rank] = [experts[expert] for expert in held]
    return ranks


def _anew(
    request: PolicyRequest, pack: Callable[[FloatArray, list[int]], list[list[int]]]
) -> Placement:
    phy2log = request.placement.phy2log.copy()
    for layer in request.layers:
        if request.heat[layer].any():
            sizes = [len(held) for held in ranks_of(phy2log[layer], request.placement)]
            ranks = pack(request.heat[layer], sizes)
            phy2log[layer] = row_of(ranks, phy2log[layer], request.placement)
    return aligned(request, phy2log)
