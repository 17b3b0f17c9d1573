"""One matrix for each slot, in each way of storing it.

Axes    S slots   B output width   A input width   W = B / 8 words of eight int4
        G groups of the input axis   C = ceil(A / 32) blocks   Y = A / 2 bytes of two float4

A linear is a frozen dataclass of stacked tensors whose first axis is the slot. Its fields are
all that a matrix consists of, what is derived included, so that nothing can be left behind
when an expert moves: `named` reads the fields themselves.
"""

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.rows import BLOCK

__all__ = [
    "DenseLinear",
    "Fp8Linear",
    "Int4A16Linear",
    "Int4Linear",
    "Int8Linear",
    "Linear",
    "Mx4Linear",
    "Mx8Linear",
    "StackedFields",
]


@dataclass(frozen=True, slots=True, eq=False)
class StackedFields:
    """A dataclass of stacked tensors, read by its fields; axes are no part of a name."""

    def named(self) -> dict[str, Tensor]:
        """Return every tensor by name."""
        stacks: dict[str, Tensor] = {}
        for field in fields(self):
            stack = getattr(self, field.name)
            assert isinstance(stack, Tensor)
            stacks[field.name.rpartition("_")[0]] = stack
        return stacks

    def allocate(self, num_slots: int) -> Self:
        """Return zeroed tensors of the same kind for another number of slots."""
        stacks = self.named().values()
        return type(self)(*(stack.new_zeros((num_slots, *stack.shape[1:])) for stack in stacks))


@dataclass(frozen=True, slots=True, eq=False)
class DenseLinear(StackedFields):
    """float32, bfloat16 or float16 as they are."""

    w_SBA: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Int8Linear(StackedFields):
    """int8, one scale for each output; no zero points, since both sides are symmetric."""

    w_SBA: Tensor
    """int8."""
    scale_SB: Tensor
    """float32."""

    def __post_init__(self) -> None:
        _expect("w", self.w_SBA, torch.int8, (*self.w_SBA.shape[:2], None))
        _expect("scale", self.scale_SB, torch.float32, self.w_SBA.shape[:2])


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Linear(StackedFields):
    """float8 e4m3, one scale for each output."""

    w_SBA: Tensor
    """float8_e4m3fn."""
    scale_SB: Tensor
    """float32."""

    def __post_init__(self) -> None:
        _expect("w", self.w_SBA, torch.float8_e4m3fn, (*self.w_SBA.shape[:2], None))
        _expect("scale", self.scale_SB, torch.float32, self.w_SBA.shape[:2])


@dataclass(frozen=True, slots=True, eq=False)
class Int4Linear(StackedFields):
    """int4 for int8 rows: scales by group of the input (one group: by output only).

    Kernels for int8 rows split a row x into 16 * hi + lo + 8 with lo from -8 to 7, so that both
    halves are int4; the scale bias is the part of the 8, 8 * sum over inputs of weight * scale.
    It is derived from the weights, so it moves with them.
    """

    w_SAW: Tensor
    """int32, eight int4 along the output, the first in the lowest bits."""
    scale_SGB: Tensor
    """float32."""
    scale_bias_SB: Tensor
    """float32."""

    def __post_init__(self) -> None:
        s, a, w = self.w_SAW.shape
        g = self.scale_SGB.shape[1]
        _expect("w", self.w_SAW, torch.int32, (s, a, w))
        _expect("scale", self.scale_SGB, torch.float32, (s, g, 8 * w))
        _expect("scale_bias", self.scale_bias_SB, torch.float32, (s, 8 * w))
        _refuse_groups(a, g)


@dataclass(frozen=True, slots=True, eq=False)
class Int4A16Linear(StackedFields):
    """int4 for plain rows: (w + offset) * scale, by group of the input."""

    w_SAW: Tensor
    """int32, eight int4 along the output, the first in the lowest bits."""
    scale_SGB: Tensor
    """The model's dtype."""
    offset_SGB: Tensor
    """The model's dtype: minus the zero point."""

    def __post_init__(self) -> None:
        s, a, w = self.w_SAW.shape
        g = self.scale_SGB.shape[1]
        _expect("w", self.w_SAW, torch.int32, (s, a, w))
        _expect("scale", self.scale_SGB, self.scale_SGB.dtype, (s, g, 8 * w))
        _expect("offset", self.offset_SGB, self.scale_SGB.dtype, (s, g, 8 * w))
        _refuse_groups(a, g)


@dataclass(frozen=True, slots=True, eq=False)
class Mx8Linear(StackedFields):
    """MXFP8: float8 e4m3 in blocks of the input."""

    w_SBA: Tensor
    """float8_e4m3fn."""
    scale_SBC: Tensor
    """uint8, e8m0."""

    def __post_init__(self) -> None:
        s, b, a = self.w_SBA.shape
        _expect("w", self.w_SBA, torch.float8_e4m3fn, (s, b, a))
        _expect("scale", self.scale_SBC, torch.uint8, (s, b, -(-a // BLOCK)))


@dataclass(frozen=True, slots=True, eq=False)
class Mx4Linear(StackedFields):
    """MXFP4: float4 e2m1 in blocks of the input, two in a byte, the first in the low half."""

    w_SBY: Tensor
    """uint8."""
    scale_SBC: Tensor
    """uint8, e8m0."""

    def __post_init__(self) -> None:
        s, b, y = self.w_SBY.shape
        _expect("w", self.w_SBY, torch.uint8, (s, b, y))
        _expect("scale", self.scale_SBC, torch.uint8, (s, b, -(-2 * y // BLOCK)))


Linear = DenseLinear | Int8Linear | Fp8Linear | Int4Linear | Int4A16Linear | Mx8Linear | Mx4Linear


def _expect(what: str, stack: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    matches = len(stack.shape) == len(shape) and all(
        wanted in (None, got) for got, wanted in zip(stack.shape, shape, strict=True)
    )
    if stack.dtype != dtype or not matches:
        raise ShapeMismatch(
            f"{what} of {stack.dtype}", got=stack.shape, expected=f"{dtype} {tuple(shape)}"
        )


def _refuse_groups(width: int, num_groups: int) -> None:
    if not num_groups or width % num_groups:
        raise ShapeMismatch(
            "scale", got=(num_groups,), expected=f"groups that divide an input of {width}"
        )
