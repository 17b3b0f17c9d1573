"""Where pairs stand: from flat pairs to rows, and back.

Axes    T tokens   K experts per token   M rows   P slots   N ranks   S local slots
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.ids import NOT_SENT, SEVERAL, UNCLAIMED, PhysicalIds

__all__ = ["SortedPairs", "claims", "inverse", "places", "sort_pairs", "tell"]


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
    # One place more takes what is passed over, so that nothing depends on how many those are.
    slots = torch.where(slots >= 0, slots, num_slots)
    highest = slots.new_full((num_slots + 1,), UNCLAIMED)
    lowest = slots.new_full((num_slots + 1,), torch.iinfo(torch.int64).max)
    highest.scatter_reduce_(0, slots, experts, reduce="amax")
    lowest.scatter_reduce_(0, slots, experts, reduce="amin")
    return torch.where(lowest < highest, SEVERAL, highest)[:num_slots]


def tell(slots_TK: Tensor, experts_TK: Tensor, num_slots: int) -> Tensor:
    """Return int64 [num_slots, 2]: how many pairs each slot gets, and whom it is taken for.

    Pairs with a slot below zero are passed over. No size depends on a value, so no host waits.
    """
    slots = slots_TK.reshape(-1)
    counted = torch.where(slots >= 0, slots, num_slots)
    counts = slots.new_zeros(num_slots + 1).index_add(0, counted, torch.ones_like(slots))
    claimed = claims(slots, experts_TK.reshape(-1), num_slots)
    return torch.stack((counts[:num_slots], claimed), dim=1)


def inverse(order_M: Tensor) -> Tensor:
    """Return where each number of a permutation stands."""
    return places(order_M, order_M.numel())


def places(order: Tensor, size: int) -> Tensor:
    """Return [size]: where each number stands in the order, -1 for one that is not in it."""
    found = order.new_full((size,), -1)
    found[order] = torch.arange(order.numel(), device=order.device)
    return found
