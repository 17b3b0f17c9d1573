"""The first and the last stage: leave padding rows behind, and put the rest back in place.

Axes    T tokens   D model width
"""

import torch
from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.stages import Prepared

__all__ = ["finalize", "prepare"]


def prepare(x_TD: Tensor, real_T: Tensor) -> Prepared:
    """Keep the rows that are tokens.

    real_T    bool [T], false for padding; any pattern
    """
    if real_T.shape != x_TD.shape[:1] or real_T.dtype != torch.bool:
        raise ShapeMismatch("real_T", got=real_T.shape, expected=f"bool ({x_TD.shape[0]},)")
    kept_T = torch.nonzero(real_T).reshape(-1)
    return Prepared(x_TD[kept_T], kept_T, x_TD.shape[0])


def finalize(y_TD: Tensor, prepared: Prepared) -> Tensor:
    """Return one row for each row of the batch, zeros where it was padding."""
    out = y_TD.new_zeros((prepared.num_rows, y_TD.shape[1]))
    return out.index_copy_(0, prepared.kept_T, y_TD)
