"""Rows as they travel and as experts read them: plain, or quantised with their scales beside them.

Axes    M rows   Z width of a row   B = ceil(Z / 32) blocks of a row

A row is quantised from itself alone, so quantising before rows are sent and quantising after
they have arrived give the same bytes; whichever way, scales travel with their rows. One type
per form; `parts` are the tensors that travel, each with the row as its first axis.

Block formats are those of the Open Compute Project's "Microscaling Formats (MX)" 1.0: 32
elements share one e8m0 scale, the power of two 2 ** (byte - 127).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

import torch
from torch import Tensor

__all__ = [
    "AS_IS",
    "BLOCK",
    "AdaptedRows",
    "AsIs",
    "Fp8Rows",
    "Int8Rows",
    "Mx4Rows",
    "Mx8Rows",
    "PlainRows",
    "RowCoder",
    "RowForm",
    "Rows",
    "pick_rows",
]

BLOCK = 32
"""Elements that share a scale in the MX formats."""


class RowForm(Enum):
    """What a row consists of."""

    PLAIN = "plain"
    INT8 = "int8"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    MXFP4 = "mxfp4"


@dataclass(frozen=True, slots=True, eq=False)
class PlainRows:
    """Rows in the model's dtype."""

    form: ClassVar = RowForm.PLAIN
    x_MZ: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The model's dtype."""
        return self.x_MZ.dtype

    def parts(self) -> tuple[Tensor, ...]:
        """Return the tensors that travel."""
        return (self.x_MZ,)

    def of(self, parts: Sequence[Tensor]) -> "PlainRows":
        """Return rows of the same form made of other parts."""
        (x_MZ,) = parts
        return PlainRows(x_MZ)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedRows(PlainRows):
    """Plain rows, each with the number of the adapter that its token uses."""

    adapter_M: Tensor
    """int64 [M], or NO_ADAPTER."""

    def parts(self) -> tuple[Tensor, ...]:
        """Return the tensors that travel."""
        return (self.x_MZ, self.adapter_M)

    def of(self, parts: Sequence[Tensor]) -> "AdaptedRows":
        """Return rows of the same form made of other parts."""
        x_MZ, adapter_M = parts
        return AdaptedRows(x_MZ, adapter_M)


@dataclass(frozen=True, slots=True, eq=False)
class Int8Rows:
    """Whole numbers from -127 to 127, times one scale for each row."""

    form: ClassVar = RowForm.INT8
    q_MZ: Tensor
    """int8."""
    scale_M: Tensor
    """float32 [M]."""
    dtype: torch.dtype
    """Of the rows before, and of what is computed from them."""

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return the tensors that travel."""
        return (self.q_MZ, self.scale_M)

    def of(self, parts: Sequence[Tensor]) -> "Int8Rows":
        """Return rows of the same form made of other parts."""
        q_MZ, scale_M = parts
        return Int8Rows(q_MZ, scale_M, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Rows:
    """float8 e4m3, times one scale for each row."""

    form: ClassVar = RowForm.FP8
    q_MZ: Tensor
    """float8_e4m3fn."""
    scale_M: Tensor
    """float32 [M]."""
    dtype: torch.dtype
    """Of the rows before, and of what is computed from them."""

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return the tensors that travel."""
        return (self.q_MZ, self.scale_M)

    def of(self, parts: Sequence[Tensor]) -> "Fp8Rows":
        """Return rows of the same form made of other parts."""
        q_MZ, scale_M = parts
        return Fp8Rows(q_MZ, scale_M, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Mx8Rows:
    """MXFP8: float8 e4m3 in blocks."""

    form: ClassVar = RowForm.MXFP8
    q_MZ: Tensor
    """float8_e4m3fn."""
    scale_MB: Tensor
    """uint8, e8m0."""
    dtype: torch.dtype
    """Of the rows before, and of what is computed from them."""

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return the tensors that travel."""
        return (self.q_MZ, self.scale_MB)

    def of(self, parts: Sequence[Tensor]) -> "Mx8Rows":
        """Return rows of the same form made of other parts."""
        q_MZ, scale_MB = parts
        return Mx8Rows(q_MZ, scale_MB, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Mx4Rows:
    """MXFP4: float4 e2m1 in blocks, two in a byte, the first in the low half."""

    form: ClassVar = RowForm.MXFP4
    q_MY: Tensor
    """uint8 [M, Z / 2]."""
    scale_MB: Tensor
    """uint8, e8m0."""
    dtype: torch.dtype
    """Of the rows before, and of what is computed from them."""

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return the tensors that travel."""
        return (self.q_MY, self.scale_MB)

    def of(self, parts: Sequence[Tensor]) -> "Mx4Rows":
        """Return rows of the same form made of other parts."""
        q_MY, scale_MB = parts
        return Mx4Rows(q_MY, scale_MB, self.dtype)


Rows = PlainRows | Int8Rows | Fp8Rows | Mx8Rows | Mx4Rows


def pick_rows(rows: Rows, index_M: Tensor) -> Rows:
    """Return the named rows with their scales, in the order of the index."""
    return rows.of([_picked(part, index_M) for part in rows.parts()])


def _picked(part: Tensor, index_M: Tensor) -> Tensor:
    """Return rows of one part: copied whole, which on CPUs takes a fifth of an index's time."""
    if part.dtype.itemsize > 1 or not part.is_floating_point():
        return part.index_select(0, index_M)
    return part.view(torch.uint8).index_select(0, index_M).view(part.dtype)  # float8 has none


class RowCoder(Protocol):
    """How a dispatch encodes the rows that it sends."""

    def encode(self, x_MZ: Tensor) -> Rows:
        """Return the rows to send, each row by itself: no row may depend on another."""
        ...


@dataclass(frozen=True, slots=True)
class AsIs:
    """Send rows in the dtype of the model."""

    def encode(self, x_MZ: Tensor) -> PlainRows:
        """Return the rows unchanged."""
        return PlainRows(x_MZ)


AS_IS = AsIs()
