"""Which rows MC2 sends: a block of equal size on every rank with a mask, or uneven rows.

Axes    T tokens of this rank   B rows of the block   K experts per token   Z width
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.contracts.adapters import NO_ADAPTER
from moe_runtime.contracts.exchange_errors import BadMask, BeyondLimit
from moe_runtime.contracts.ids import NOT_SENT, LogicalIds, PhysicalIds
from moe_runtime.contracts.stages import Placed, PlacedAdapted

__all__ = ["AllActive", "Masked", "adapted", "all_active", "masked"]


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """A block of as many rows on every rank, of which the first ones are tokens.

    Raises BadMask unless the mask has one entry for each row, and tokens come first.
    """

    placed: Placed
    active_B: Tensor

    def __post_init__(self) -> None:
        num_rows = self.placed.x_TZ.shape[0]
        if self.active_B.shape != (num_rows,) or self.active_B.dtype != torch.bool:
            raise BadMask(
                f"a mask of {self.active_B.dtype} and shape {tuple(self.active_B.shape)} was given "
                f"for a block of {num_rows} rows"
            )
        if bool((self.active_B[1:] & ~self.active_B[:-1]).any()):
            raise BadMask("padding stands before a token; the kernel takes tokens first")
        if bool((self.placed.slots.ids_TK[~self.active_B] != NOT_SENT).any()):
            raise BadMask("rows outside the mask name slots; they would be computed as tokens")


@dataclass(frozen=True, slots=True, eq=False)
class AllActive:
    """Uneven rows: every row is a token, and what all ranks together may bring is told.

    Raises BeyondLimit if this rank brings more than its part.
    """

    placed: Placed
    global_rows: int
    num_ranks: int

    def __post_init__(self) -> None:
        most = self.global_rows // self.num_ranks
        if self.placed.x_TZ.shape[0] > most:
            raise BeyondLimit("rows of a rank", got=self.placed.x_TZ.shape[0], most=most)


def masked(placed: Placed, block: int) -> Masked:
    """Pad to the block, which is the same on every rank; raises BeyondLimit if it is too small."""
    num_rows = placed.x_TZ.shape[0]
    if num_rows > block:
        raise BeyondLimit("rows of a rank", got=num_rows, most=block)
    return Masked(_padded(placed, block), torch.arange(block) < num_rows)


def all_active(placed: Placed, *, global_rows: int, num_ranks: int) -> AllActive:
    """Leave the rows as they are."""
    return AllActive(placed, global_rows, num_ranks)


def _padded(placed: Placed, block: int) -> Placed:
    missing = block - placed.x_TZ.shape[0]
    padded = Placed(
        _below(placed.x_TZ, missing, 0),
        PhysicalIds(_below(placed.slots.ids_TK, missing, NOT_SENT)),
        LogicalIds(_below(placed.experts.ids_TK, missing, NOT_SENT)),
        _below(placed.weights_TK, missing, 0),
    )
    if not isinstance(placed, PlacedAdapted):
        return padded
    none = placed.adapters_T.new_full((missing,), NO_ADAPTER)
    return adapted(padded, torch.cat((placed.adapters_T, none)))


def adapted(placed: Placed, adapters_T: Tensor) -> PlacedAdapted:
    """Return the same pairs, of tokens that use adapters."""
    return PlacedAdapted(placed.x_TZ, placed.slots, placed.experts, placed.weights_TK, adapters_T)


def _below(rows: Tensor, missing: int, value: int) -> Tensor:
    return torch.cat((rows, rows.new_full((missing, rows.shape[1]), value)))
