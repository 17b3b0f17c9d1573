"""Expert weights, one type per format.

Axes    S slots   F = 2 I gate rows, then up rows   I expert width   Z width of the routed part

A format is a frozen dataclass that meets `StackedWeights`: named stacks, one row per slot.
Placement moves any format by its named tensors (all of them: a quantised one brings its scales
under names of their own); only the stage that computes a format knows what its tensors mean.
"""

from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.linears import (
    DenseLinear,
    Fp8Linear,
    Int4A16Linear,
    Int4Linear,
    Int8Linear,
    Linear,
    Mx4Linear,
    Mx8Linear,
)
from moe_runtime.contracts.rows import RowForm

__all__ = [
    "BiasedWeights",
    "DenseWeights",
    "ExpertWeights",
    "FusedWeights",
    "Mxfp4A16Weights",
    "PlainExpertWeights",
    "ReadableWeights",
    "StackedWeights",
    "W4A4Mxfp4Weights",
    "W4A8MxfpWeights",
    "W4A8Weights",
    "W4A16Weights",
    "W8A8Fp8Weights",
    "W8A8Mxfp8Weights",
    "W8A8Weights",
]

K = TypeVar("K", bound=Linear)


class StackedWeights(Protocol):
    """Weights of several slots: named tensors whose first axis is the slot."""

    def named(self) -> dict[str, Tensor]:
        """Return every tensor that an expert consists of, by name."""
        ...

    def allocate(self, num_slots: int) -> Self:
        """Return zeroed weights of the same format for another number of slots."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeights:
    """Unquantised experts."""

    rows: ClassVar = RowForm.PLAIN
    w13_SFZ: Tensor
    """I gate rows, then I up rows; or in turn, gate first, where the activation reads them
    interleaved (SwiGLUOAI)."""
    w2_SZI: Tensor
    """Down."""

    def __post_init__(self) -> None:
        s, f, z = self.w13_SFZ.shape
        if self.w2_SZI.shape != (s, z, f // 2) or f % 2:
            raise ShapeMismatch(
                "w2", got=self.w2_SZI.shape, expected=f"({s}, {z}, {f // 2}) beside w13 {(s, f, z)}"
            )

    @property
    def w13(self) -> DenseLinear:
        """Gate and up."""
        return DenseLinear(self.w13_SFZ)

    @property
    def w2(self) -> DenseLinear:
        """Down."""
        return DenseLinear(self.w2_SZI)

    def named(self) -> dict[str, Tensor]:
        """Return both stacks by name."""
        return {"w13": self.w13_SFZ, "w2": self.w2_SZI}

    def allocate(self, num_slots: int) -> "DenseWeights":
        """Return zeroed weights for another number of slots."""
        w13, w2 = self.w13_SFZ, self.w2_SZI
        return DenseWeights(
            w13.new_zeros((num_slots, *w13.shape[1:])), w2.new_zeros((num_slots, *w2.shape[1:]))
        )


@dataclass(frozen=True, slots=True, eq=False)
class _QuantisedWeights(Generic[K]):
    """Two linears stored alike."""

    w13: K
    """Gate and up."""
    w2: K
    """Down."""

    def named(self) -> dict[str, Tensor]:
        """Return every tensor of both linears: w13, w13_scale, ..., w2, w2_scale, ..."""
        return _prefixed("w13", self.w13) | _prefixed("w2", self.w2)

    def allocate(self, num_slots: int) -> Self:
        """Return zeroed weights of the same format for another number of slots."""
        return type(self)(self.w13.allocate(num_slots), self.w2.allocate(num_slots))


class W8A8Weights(_QuantisedWeights[Int8Linear]):
    """W8A8 dynamic: int8 weights by output, int8 rows by token."""

    __slots__ = ()
    rows: ClassVar = RowForm.INT8


class W8A8Fp8Weights(_QuantisedWeights[Fp8Linear]):
    """float8 weights by output, float8 rows by token."""

    __slots__ = ()
    rows: ClassVar = RowForm.FP8


class W4A8Weights(_QuantisedWeights[Int4Linear]):
    """int4 weights by group or by output, int8 rows by token."""

    __slots__ = ()
    rows: ClassVar = RowForm.INT8


class W4A16Weights(_QuantisedWeights[Int4A16Linear]):
    """int4 weights with zero points, rows as they are."""

    __slots__ = ()
    rows: ClassVar = RowForm.PLAIN


class W8A8Mxfp8Weights(_QuantisedWeights[Mx8Linear]):
    """MXFP8 weights and rows."""

    __slots__ = ()
    rows: ClassVar = RowForm.MXFP8


class W4A8MxfpWeights(_QuantisedWeights[Mx4Linear]):
    """MXFP4 weights, MXFP8 rows."""

    __slots__ = ()
    rows: ClassVar = RowForm.MXFP8


class W4A4Mxfp4Weights(_QuantisedWeights[Mx4Linear]):
    """MXFP4 weights and rows."""

    __slots__ = ()
    rows: ClassVar = RowForm.MXFP4


class Mxfp4A16Weights(_QuantisedWeights[Mx4Linear]):
    """MXFP4 weights, rows as they are."""

    __slots__ = ()
    rows: ClassVar = RowForm.PLAIN


PlainExpertWeights = (
    DenseWeights
    | W8A8Weights
    | W8A8Fp8Weights
    | W4A8Weights
    | W4A16Weights
    | W8A8Mxfp8Weights
    | W4A8MxfpWeights
    | W4A4Mxfp4Weights
    | Mxfp4A16Weights
)
"""Every format, without biases."""


@dataclass(frozen=True, slots=True, eq=False)
class BiasedWeights:
    """Experts of any format that add a bias after each linear, in the model's dtype."""

    weights: PlainExpertWeights
    bias13_SF: Tensor
    bias2_SZ: Tensor

    @property
    def rows(self) -> RowForm:
        """The form in which the experts read rows."""
        return self.weights.rows

    def named(self) -> dict[str, Tensor]:
        """Return every tensor of the format, and both biases."""
        return self.weights.named() | {"bias13": self.bias13_SF, "bias2": self.bias2_SZ}

    def allocate(self, num_slots: int) -> "BiasedWeights":
        """Return zeroed weights of the same format for another number of slots."""
        b13, b2 = self.bias13_SF, self.bias2_SZ
        return BiasedWeights(
            self.weights.allocate(num_slots),
            b13.new_zeros((num_slots, *b13.shape[1:])),
            b2.new_zeros((num_slots, *b2.shape[1:])),
        )


ReadableWeights = PlainExpertWeights | BiasedWeights
"""Everything that `experts` computes."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedWeights:
    """Integer experts that fused MC2 reads too: by scales of its own, beside the format's.

    Its operators take float32 scales as bits in the low words of int64. They are no view of the
    format's scales, so they are tensors of an expert like any other, and move with it.
    """

    weights: ReadableWeights
    fused13_S: Tensor
    """int64 [S, ...] as the scales of gate and up."""
    fused2_S: Tensor
    """int64 [S, ...] as the scales of down."""

    @property
    def rows(self) -> RowForm:
        """The form in which the experts read rows."""
        return self.weights.rows

    def named(self) -> dict[str, Tensor]:
        """Return every tensor of the format, and both stacks of fused MC2."""
        return self.weights.named() | {"w13_fused": self.fused13_S, "w2_fused": self.fused2_S}

    def allocate(self, num_slots: int) -> "FusedWeights":
        """Return zeroed weights of the same format for another number of slots."""
        one, two = self.fused13_S, self.fused2_S
        return FusedWeights(
            self.weights.allocate(num_slots),
            one.new_zeros((num_slots, *one.shape[1:])),
            two.new_zeros((num_slots, *two.shape[1:])),
        )


ExpertWeights = ReadableWeights | FusedWeights
"""Everything that a slot may hold."""


def _prefixed(name: str, linear: Linear) -> dict[str, Tensor]:
    return {
        name if part == "w" else f"{name}_{part}": stack for part, stack in linear.named().items()
    }
