"""Where pairs stand: from flat pairs to rows, and back.

Axes    T tokens   K experts per token   M rows   P slots   N ranks   S local slots
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.ids import NOT_SENT, SEVERAL, UNCLAIMED, PhysicalIds

__all__ = ["SortedPairs", "claims", "inverse", "places", "sort_pairs"]


@dataclass(frozen=True, slots=True, eq=False)
class SortedPairs:
    """The pairs that are sent, sorted by slot."""

    order_M: Tensor
    """int64 [M] flat number of each pair."""
    tokens_M: Tensor
    """int64 [M] token of each pair."""
    counts_P: Tensor
    """int64 [P] pairs of each slot."""
    index_TK: Tensor
    """int64 [T, K] where each pair stands, -1 for one that is not sent."""


def sort_pairs(placed: PhysicalIds, num_slots: int, backend: Backend) -> SortedPairs:
    """Sort one rank's pairs by slot."""
    slots_TK = placed.ids_TK
    pairs = torch.nonzero(slots_TK.reshape(-1) != NOT_SENT).reshape(-1)
    slots = slots_TK.reshape(-1)[pairs]
    order_M = pairs[backend.order_by_group(slots)]
    return SortedPairs(
        order_M=order_M,
        tokens_M=torch.div(order_M, slots_TK.shape[1], rounding_mode="floor"),
        counts_P=backend.count_groups(slots, num_slots).counts_S,
        index_TK=places(order_M, slots_TK.numel()).view_as(slots_TK),
    )


def claims(slots: Tensor, experts: Tensor, num_slots: int) -> Tensor:
    """Return int64 [num_slots]: the expert that pairs take each slot for.

    slots, experts    of each pair; pairs with a slot below zero are passed over

    UNCLAIMED without pairs, and SEVERAL where pairs disagree, so that it is found out.
    """
    sent = slots >= 0
    slots, experts = slots[sent], experts[sent]
    highest = torch.full((num_slots,), UNCLAIMED, dtype=torch.int64)
    lowest = torch.full((num_slots,), torch.iinfo(torch.int64).max)
    highest.scatter_reduce_(0, slots, experts, reduce="amax")
    lowest.scatter_reduce_(0, slots, experts, reduce="amin")
    return torch.where(lowest < highest, SEVERAL, highest)


def inverse(order_M: Tensor) -> Tensor:
    """Return where each number of a permutation stands."""
    return places(order_M, order_M.numel())


def places(order: Tensor, size: int) -> Tensor:
    """Return [size]: where each number stands in the order, -1 for one that is not in it."""
    found = torch.full((size,), -1, dtype=torch.int64)
    found[order] = torch.arange(order.numel())
    return found
