"""Ids that a router chose, captured: whose rows they are, and whether they can be true.

Axes    A rows of all ranks   T tokens of one rank   K experts per token   N ranks

Ids are logical, as they were before any table was applied, so a placement never shows in them.
Which rows are a rank's own is told by the layout, never guessed from how many rows there are.
"""

from dataclasses import dataclass

from torch import Tensor

from moe_runtime.contracts.errors import CaptureUnavailable, ShapeMismatch
from moe_runtime.contracts.ids import LogicalIds

__all__ = ["Concatenated", "OwnRows", "PaddedBlocks", "RowLayout", "own_rows", "refuse_impossible"]


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Only this rank's tokens."""


@dataclass(frozen=True, slots=True)
class Concatenated:
    """The tokens of all ranks, one rank after the other, nothing between them."""

    rows_N: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PaddedBlocks:
    """A block of equal size for each rank, its tokens first, then padding."""

    rows_N: tuple[int, ...]
    block: int


RowLayout = OwnRows | Concatenated | PaddedBlocks


def own_rows(ids: LogicalIds, layout: RowLayout, *, rank: int) -> LogicalIds:
    """Return [T, K] of one rank; raises ShapeMismatch if the layout is not that of the ids."""
    match layout:
        case OwnRows():
            return ids
        case Concatenated(rows_N):
            start, total = sum(rows_N[:rank]), sum(rows_N)
        case PaddedBlocks(rows_N, block):
            start, total = rank * block, len(rows_N) * block
            if max(rows_N) > block:
                raise ShapeMismatch("blocks", got=rows_N, expected=f"at most {block} tokens each")
    if ids.ids_TK.shape[0] != total:
        raise ShapeMismatch(
            f"ids in the layout {layout}", got=ids.ids_TK.shape, expected=f"({total}, K)"
        )
    return LogicalIds(ids.ids_TK[start : start + rows_N[rank]])


def refuse_impossible(ids_TK: Tensor, *, num_experts: int) -> LogicalIds:
    """Return captured ids; raises CaptureUnavailable if no router could have chosen them.

    num_experts    experts to choose from, zero experts included

    A buffer that was never written is all zeros, and no token chooses an expert twice.
    """
    if ids_TK.is_floating_point() or ids_TK.is_complex():
        raise CaptureUnavailable(f"the ids are {ids_TK.dtype}, expected integers")
    ids_TK = ids_TK.long()
    if bool(((ids_TK < 0) | (ids_TK >= num_experts)).any()):
        raise CaptureUnavailable(f"some ids are not experts, expected 0 to {num_experts - 1}")
    sorted_TK = ids_TK.sort(dim=1).values
    num_repeats = int((sorted_TK[:, 1:] == sorted_TK[:, :-1]).any(dim=1).sum())
    if num_repeats:
        raise CaptureUnavailable(f"{num_repeats} tokens have an expert twice, which cannot be")
    return LogicalIds(ids_TK)
