"""The first and the last stage: leave padding rows behind, and put the rest back in place.

Axes    T tokens of this rank   A tokens of its team   D model width
"""

import torch
from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.stages import Prepared, PreparedPiece
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.spread import pieces

__all__ = ["finalize", "finalize_piece", "prepare", "prepare_piece"]


def prepare(x_TD: Tensor, real_T: Tensor) -> Prepared:
    """Keep the rows that are tokens.

    real_T    bool [T], false for padding; any pattern
    """
    kept_T = _kept(x_TD, real_T)
    # Without padding nothing is left behind, and nothing is copied.
    tokens_TD = x_TD if kept_T.numel() == x_TD.shape[0] else x_TD.index_select(0, kept_T)
    return Prepared(tokens_TD, kept_T, x_TD.shape[0])


def prepare_piece(x_TD: Tensor, real_T: Tensor, *, place: int, team: int) -> PreparedPiece:
    """Keep this rank's piece of the tokens that all ranks of its team have.

    place    this rank's number in the team
    """
    kept_A = _kept(x_TD, real_T)
    sizes = pieces(kept_A.numel(), team)
    start = sum(sizes[:place])
    kept_T = kept_A[start : start + sizes[place]]
    return PreparedPiece(
        Prepared(x_TD.index_select(0, kept_T), kept_T, x_TD.shape[0]), kept_A, sizes
    )


def finalize(y_TD: Tensor, prepared: Prepared) -> Tensor:
    """Return one row for each row of the batch, zeros where it was padding."""
    return _back(y_TD, prepared.kept_T, prepared.num_rows)


def finalize_piece(y_TD: Tensor, prepared: PreparedPiece, team: Peers) -> Tensor:
    """Gather the pieces of the team, then likewise. Each row is complete, so nothing is summed."""
    y_AD = team.all_gather(y_TD, prepared.pieces)
    return _back(y_AD, prepared.kept_A, prepared.own.num_rows)


def _kept(x_TD: Tensor, real_T: Tensor) -> Tensor:
    if real_T.shape != x_TD.shape[:1] or real_T.dtype != torch.bool:
        raise ShapeMismatch("real_T", got=real_T.shape, expected=f"bool ({x_TD.shape[0]},)")
    return torch.nonzero(real_T).reshape(-1)


def _back(y_TD: Tensor, kept_T: Tensor, num_rows: int) -> Tensor:
    if kept_T.numel() == num_rows:
        return y_TD  # all rows are tokens, in their places
    out = y_TD.new_zeros((num_rows, y_TD.shape[1]))
    return out.index_copy_(0, kept_T, y_TD)
