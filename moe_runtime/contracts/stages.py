"""What one stage hands to the next.

Axes    T tokens of this rank          A tokens of all ranks       K experts per token
        B rows of a rank's MC2 block
        D model width                  Z width of the routed part  N ranks
        M token rows at local slots    S local slots

Each type is the whole output of one stage and the whole input of the next:
nothing travels beside it and no stage keeps anything between calls. What an
exchange mode needs again when it combines is its own type, so that a mode
cannot be given another mode's.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import Rows

__all__ = [
    "AllGatherCarry",
    "AllGatherSumCarry",
    "AllToAllCarry",
    "Combined",
    "Computed",
    "Dispatched",
    "FusedMc2Carry",
    "Mc2Carry",
    "Mc2HierarchyCarry",
    "Placed",
    "PlacedAdapted",
    "Prepared",
    "PreparedPiece",
    "Routed",
    "RoutedBesideZero",
]

C = TypeVar("C")
"""The carry-over of one exchange mode."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The rows that are tokens; padding is left behind and never computed."""

    x_TD: Tensor
    kept_T: Tensor
    """int64 [T] row of each token in the batch."""
    num_rows: int
    """Rows of the batch, padding included."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPiece:
    """This rank's piece of tokens that all ranks of its team have."""

    own: Prepared
    """The piece; its rows are numbered in the batch."""
    kept_A: Tensor
    """int64 [A] row of each token of the team in the batch."""
    pieces: tuple[int, ...]
    """Tokens of each rank's piece; they add up to A."""


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """Chosen by the router."""

    x_TZ: Tensor
    """Tokens as the experts read them."""
    experts: LogicalIds
    weights_TK: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RoutedBesideZero:
    """Chosen by a router that knows zero experts: their pairs stay with the token's owner."""

    routed: Routed
    """Pairs of zero experts have NOT_SENT in the place of an id, and weight zero."""
    identity_T: Tensor
    """Summed weight of each token's zero experts: what it gets back of itself, once."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Given a slot each, by the rank that owns the tokens."""

    x_TZ: Tensor
    slots: PhysicalIds
    experts: LogicalIds
    """Whom each pair was placed for; the rank that holds the slot checks that it is so."""
    weights_TK: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PlacedAdapted(Placed):
    """Placed, where experts have adapters."""

    adapters_T: Tensor
    """int64 [T] adapter of each token, or NO_ADAPTER."""


@dataclass(frozen=True, slots=True, eq=False)
class Dispatched(Generic[C]):
    """Arrived where the experts are, sorted by local slot."""

    rows: Rows
    counts: GroupCounts
    """Rows of each local slot; rows beyond their sum, if any, mean nothing."""
    received_NS: Tensor
    """int64 [N, S] rows each rank sent to each local slot."""
    claimed_NS: Tensor
    """int64 [N, S] logical expert that each rank takes each local slot for, or UNCLAIMED, or
    SEVERAL."""
    carry: C


@dataclass(frozen=True, slots=True, eq=False)
class Computed(Generic[C]):
    """Gone through the experts, still sorted by local slot."""

    rows_MZ: Tensor
    carry: C


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """Summed over each token's experts, in token order."""

    x_TZ: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AllGatherCarry:
    """What AllGather needs again to combine."""

    index_AK: Tensor
    """int64 [A, K] computed row of each pair, -1 where another rank computes it."""
    weights_AK: Tensor
    rows_N: tuple[int, ...]
    """Tokens of each rank; they add up to A."""


@dataclass(frozen=True, slots=True, eq=False)
class AllGatherSumCarry:
    """What AllGather needs again to combine where teams hold their tokens alike."""

    index_AK: Tensor
    """int64 [A, K] computed row of each pair, -1 where another rank computes it."""
    weights_AK: Tensor
    rows_G: tuple[int, ...]
    """Tokens of each team; they add up to A."""


@dataclass(frozen=True, slots=True, eq=False)
class AllToAllCarry:
    """What All2All needs again to combine."""

    index_TK: Tensor
    """int64 [T, K] row of each pair among those that come back, -1 for one that was not sent."""
    weights_TK: Tensor
    arrival_M: Tensor
    """int64 [M] place in order of arrival of each row sorted by slot."""
    sent_N: tuple[int, ...]
    received_N: tuple[int, ...]
    """Rows sent to, and received from, each rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Mc2Carry:
    """What MC2 needs again to combine."""

    index_BK: Tensor
    """int64 [B, K] place in the windows that come back of each pair, -1 for one not sent."""
    weights_BK: Tensor
    arrival_A: Tensor
    """int64, place in the windows of each row sorted by slot, unused ones included."""
    window_rows: int
    num_own: int
    """Rows of the block that are tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Mc2HierarchyCarry:
    """What hierarchical MC2 needs again to combine."""

    inner: Mc2Carry
    """Of the exchange inside the node."""
    num_nodes: int
    block: int
    """Rows that each node sends each other one, by rail."""
    num_own: int


@dataclass(frozen=True, slots=True, eq=False)
class FusedMc2Carry:
    """What fused MC2 needs again for one wave of slots."""

    arrival_M: Tensor
    """int64 [M] place in order of arrival of each row sorted by slot."""
