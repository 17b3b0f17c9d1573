"""Several tensors with equal numbers of rows, packed into one buffer of bytes to travel at once.

Axes    M rows
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from moe_runtime.contracts.torch_calls import split_rows

__all__ = ["Parcel", "pack"]


@dataclass(frozen=True, slots=True)
class Parcel:
    """How to take bytes apart again."""

    shapes: tuple[tuple[int, ...], ...]
    """Of one row of each tensor."""
    dtypes: tuple[torch.dtype, ...]

    def unpack(self, bytes_MB: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors that were packed; one alone is a view."""
        if len(self.dtypes) == 1:
            return (bytes_MB.view(self.dtypes[0]).view(bytes_MB.shape[0], *self.shapes[0]),)
        widths = [
            prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        return tuple(
            piece.clone(memory_format=torch.contiguous_format)
            .view(dtype)
            .view(bytes_MB.shape[0], *shape)
            for piece, dtype, shape in zip(
                split_rows(bytes_MB, widths, dim=1), self.dtypes, self.shapes, strict=True
            )
        )


def pack(parts: Sequence[Tensor]) -> tuple[Tensor, Parcel]:
    """Return uint8 [M, B], and how to take it apart; of one tensor it is a view, where it can be.

    Whoever receives must have packed tensors of the same shapes and dtypes itself.
    """
    num_rows = parts[0].shape[0]
    if len(parts) == 1:
        (part,) = parts
        is_plain = part.is_contiguous() and part.storage_offset() == 0 and 1 in part.stride()[-1:]
        whole = part if is_plain else part.clone(memory_format=torch.contiguous_format)
        rows_MB = whole.view(num_rows, prod(part.shape[1:])).view(torch.uint8)
        return rows_MB, Parcel((tuple(part.shape[1:]),), (part.dtype,))
    # A column that was expanded has stride 0 and passes for contiguous; a clone has strides anew.
    flat = [part.clone(memory_format=torch.contiguous_format) for part in parts]
    rows = [part.view(num_rows, prod(part.shape[1:])).view(torch.uint8) for part in flat]
    parcel = Parcel(tuple(tuple(p.shape[1:]) for p in parts), tuple(p.dtype for p in parts))
    return torch.cat(rows, dim=1), parcel
