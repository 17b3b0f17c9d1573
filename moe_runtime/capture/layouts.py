"""Whose rows captured ids are: told by a layout, never guessed from how many rows there are.

Axes    A rows that were routed   T tokens of one rank   K experts per token   N ranks
"""

from dataclasses import dataclass
from itertools import accumulate

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.ids import LogicalIds

__all__ = ["Concatenated", "OwnRows", "PaddedBlocks", "RowLayout", "Shards", "own_rows"]


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


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a team, gathered: each in a block of its rank, padding after the tokens.

    All of a team's tokens are every member's, so no rank has a part of its own.
    """

    rows_N: tuple[int, ...]
    """Tokens of each shard."""
    blocks_N: tuple[int, ...]
    """Rows of each shard, padding included."""


RowLayout = OwnRows | Concatenated | PaddedBlocks | Shards


def own_rows(ids: LogicalIds, layout: RowLayout, *, rank: int) -> LogicalIds:
    """Return [T, K] of one rank, in the order of its tokens.

    Raises ShapeMismatch if the ids are not laid out like that.
    """
    blocks, mine = _blocks(ids, layout, rank=rank)
    starts = list(accumulate((rows for rows, _ in blocks), initial=0))
    if ids.ids_TK.shape[0] != starts[-1]:
        raise ShapeMismatch(
            f"ids in the layout {layout}", got=ids.ids_TK.shape, expected=f"({starts[-1]}, K)"
        )
    if any(tokens > rows for rows, tokens in blocks):
        raise ShapeMismatch(
            "tokens of the blocks",
            got=[tokens for _, tokens in blocks],
            expected=f"at most {[rows for rows, _ in blocks]}",
        )
    kept = [row for i in mine for row in range(starts[i], starts[i] + blocks[i][1])]
    return LogicalIds(ids.ids_TK[kept])


def _blocks(
    ids: LogicalIds, layout: RowLayout, *, rank: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return rows and tokens of each block, and which blocks are this rank's."""
    match layout:
        case OwnRows():
            rows = ids.ids_TK.shape[0]
            return [(rows, rows)], [0]
        case Concatenated(rows_N):
            return [(rows, rows) for rows in rows_N], [rank]
        case PaddedBlocks(rows_N, block):
            return [(block, rows) for rows in rows_N], [rank]
        case Shards(rows_N, blocks_N):
            if len(rows_N) != len(blocks_N):
                raise ShapeMismatch("shards", got=rows_N, expected=f"{len(blocks_N)} of them")
            return list(zip(blocks_N, rows_N, strict=True)), list(range(len(rows_N)))
