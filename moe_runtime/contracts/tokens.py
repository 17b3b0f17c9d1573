"""Which tokens the rows of a batch are, where a model's routing asks for it.

Axes    T rows
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch

__all__ = ["NO_TOKEN_IDS", "NoTokenIds", "TokenIds"]


@dataclass(frozen=True, slots=True)
class NoTokenIds:
    """The rows are not known by token; refused by a model that chooses experts by token id."""


NO_TOKEN_IDS = NoTokenIds()


@dataclass(frozen=True, slots=True, eq=False)
class TokenIds:
    """The token of each row."""

    ids_T: Tensor
    """int32 or int64 [T], one for each row of the batch; in padding rows anything."""

    def __post_init__(self) -> None:
        if self.ids_T.ndim != 1 or self.ids_T.dtype not in {torch.int32, torch.int64}:
            raise ShapeMismatch(
                f"token ids of {self.ids_T.dtype}", got=self.ids_T.shape, expected="integers (T,)"
            )
