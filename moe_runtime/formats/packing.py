"""Every weight format by its name, and the reference quantisers of weights.

Axes    S slots   B output width   A input width   G groups of the input

A checkpoint brings weights that are quantised already; these are for models whose weights are
not, and the definition of what each tensor of a format means.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends.codes import (
    E4M3_LARGEST,
    block_scales,
    decode_e8m0,
    encode_e2m1,
    encode_e4m3,
    expand_blocks,
    pack_int4,
)
from moe_runtime.backends.cpu_linear import slot_matrix
from moe_runtime.contracts.errors import ShapeMismatch, require_type
from moe_runtime.contracts.linears import (
    Fp8Linear,
    Int4A16Linear,
    Int4Linear,
    Int8Linear,
    Mx4Linear,
    Mx8Linear,
)
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.torch_calls import is_whole
from moe_runtime.contracts.weights import (
    BiasedWeights,
    DenseWeights,
    ExpertWeights,
    FusedWeights,
    Mxfp4A16Weights,
    PlainExpertWeights,
    W4A4Mxfp4Weights,
    W4A8MxfpWeights,
    W4A8Weights,
    W4A16Weights,
    W8A8Fp8Weights,
    W8A8Mxfp8Weights,
    W8A8Weights,
)

__all__ = ["Packing", "WeightFormat", "dense_of", "pack"]


class WeightFormat(Enum):
    """How experts are stored, and in which form they read rows."""

    UNQUANTISED = "unquantised"
    """In the model's dtype: float32, bfloat16 or float16."""
    W8A8 = "w8a8"
    W8A8_FP8 = "w8a8-fp8"
    W4A8 = "w4a8"
    W4A16 = "w4a16"
    W8A8_MXFP8 = "w8a8-mxfp8"
    W4A8_MXFP = "w4a8-mxfp"
    W4A4_MXFP4 = "w4a4-mxfp4"
    W4A16_MXFP4 = "w4a16-mxfp4"

    @property
    def rows(self) -> RowForm:
        """The form in which experts of this format read rows."""
        return _TYPES[self].rows

    @property
    def weights_type(self) -> type[PlainExpertWeights]:
        """The type of this format's weights."""
        return _TYPES[self]


_TYPES: dict[WeightFormat, type[PlainExpertWeights]] = {
    WeightFormat.UNQUANTISED: DenseWeights,
    WeightFormat.W8A8: W8A8Weights,
    WeightFormat.W8A8_FP8: W8A8Fp8Weights,
    WeightFormat.W4A8: W4A8Weights,
    WeightFormat.W4A16: W4A16Weights,
    WeightFormat.W8A8_MXFP8: W8A8Mxfp8Weights,
    WeightFormat.W4A8_MXFP: W4A8MxfpWeights,
    WeightFormat.W4A4_MXFP4: W4A4Mxfp4Weights,
    WeightFormat.W4A16_MXFP4: Mxfp4A16Weights,
}


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights that are not quantised become those of a format."""

    format: WeightFormat = WeightFormat.UNQUANTISED
    group_size: int = 0
    """Inputs that share a scale in int4 formats; 0: all inputs of an output."""

    def __post_init__(self) -> None:
        require_type("format", self.format, (WeightFormat,), of="of moe_runtime")
        grouped = self.format in {WeightFormat.W4A8, WeightFormat.W4A16}
        if (
            not is_whole(self.group_size)
            or self.group_size < 0
            or (self.group_size and not grouped)
        ):
            raise ShapeMismatch(
                f"groups of {self.format.value} weights",
                got=(self.group_size,),
                expected="0 or more inputs of int4 formats, 0 of all others",
            )


def pack(dense: DenseWeights, packing: Packing, dtype: torch.dtype) -> PlainExpertWeights:
    """Return the nearest weights of a format.

    dtype    the model's, in which rows are computed

    Raises ShapeMismatch for widths that the format cannot store.
    """
    w13, w2 = (w.to(torch.float32) for w in (dense.w13_SFZ, dense.w2_SZI))
    match packing.format:
        case WeightFormat.UNQUANTISED:
            return DenseWeights(dense.w13_SFZ.to(dtype), dense.w2_SZI.to(dtype))
        case WeightFormat.W8A8:
            return W8A8Weights(_int8(w13), _int8(w2))
        case WeightFormat.W8A8_FP8:
            return W8A8Fp8Weights(_fp8(w13), _fp8(w2))
        case WeightFormat.W4A8:
            return W4A8Weights(_int4(w13, packing.group_size), _int4(w2, packing.group_size))
        case WeightFormat.W4A16:
            size = packing.group_size
            return W4A16Weights(_int4_a16(w13, size, dtype), _int4_a16(w2, size, dtype))
        case WeightFormat.W8A8_MXFP8:
            return W8A8Mxfp8Weights(_mx8(w13), _mx8(w2))
        case WeightFormat.W4A8_MXFP:
            return W4A8MxfpWeights(_mx4(w13), _mx4(w2))
        case WeightFormat.W4A4_MXFP4:
            return W4A4Mxfp4Weights(_mx4(w13), _mx4(w2))
        case WeightFormat.W4A16_MXFP4:
            return Mxfp4A16Weights(_mx4(w13), _mx4(w2))
    assert_never(packing.format)


def dense_of(weights: ExpertWeights) -> DenseWeights:
    """Return float64 weights: what the weights of a format stand for, exactly, without biases."""
    readable = weights.weights if isinstance(weights, FusedWeights) else weights
    inner = readable.weights if isinstance(readable, BiasedWeights) else readable
    num_slots = next(iter(inner.named().values())).shape[0]
    w13, w2 = (
        torch.stack([slot_matrix(linear, slot) for slot in range(num_slots)])
        for linear in (inner.w13, inner.w2)
    )
    return DenseWeights(w13, w2)


def _int8(w_SBA: Tensor) -> Int8Linear:
    scale_SB = w_SBA.abs().amax(dim=2) / 127
    return Int8Linear(torch.round(w_SBA / _divisor(scale_SB)).to(torch.int8), scale_SB)


def _fp8(w_SBA: Tensor) -> Fp8Linear:
    scale_SB = w_SBA.abs().amax(dim=2) / E4M3_LARGEST
    return Fp8Linear(encode_e4m3(w_SBA / _divisor(scale_SB)), scale_SB)


def _int4(w_SBA: Tensor, group_size: int) -> Int4Linear:
    grouped = _grouped(w_SBA, group_size)
    # Kernels read scales that float16 has, so no others are stored.
    scale_SGB = (grouped.abs().amax(dim=2) / 7).to(torch.float16).float()
    q_SGAB = torch.round(grouped / torch.where(scale_SGB == 0, 1, scale_SGB)[:, :, None])
    q_SGAB = q_SGAB.clamp(-8, 7)
    bias_SB = 8 * (q_SGAB * scale_SGB[:, :, None]).double().sum(dim=(1, 2))
    return Int4Linear(pack_int4(q_SGAB.flatten(1, 2)), scale_SGB, bias_SB.float())


def _int4_a16(w_SBA: Tensor, group_size: int, dtype: torch.dtype) -> Int4A16Linear:
    """Spread each group from its least to its greatest number, zero among them."""
    grouped = _grouped(w_SBA, group_size)
    least, most = grouped.amin(dim=2).clamp(max=0), grouped.amax(dim=2).clamp(min=0)
    scale_SGB = ((most - least) / 15).to(dtype).float()
    divisor = torch.where(scale_SGB == 0, 1, scale_SGB)
    offset_SGB = torch.round(least / divisor) + 8
    q_SGAB = torch.round(grouped / divisor[:, :, None] - offset_SGB[:, :, None]).clamp(-8, 7)
    return Int4A16Linear(pack_int4(q_SGAB.flatten(1, 2)), scale_SGB.to(dtype), offset_SGB.to(dtype))


def _mx8(w_SBA: Tensor) -> Mx8Linear:
    scales, scaled = _in_blocks(w_SBA, largest_exponent=8, encode=encode_e4m3)
    return Mx8Linear(scaled, scales)


def _mx4(w_SBA: Tensor) -> Mx4Linear:
    scales, scaled = _in_blocks(w_SBA, largest_exponent=2, encode=encode_e2m1)
    return Mx4Linear(scaled, scales)


def _in_blocks(
    w_SBA: Tensor, *, largest_exponent: int, encode: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    scales = block_scales(w_SBA, largest_exponent=largest_exponent)
    spread = expand_blocks(decode_e8m0(scales, torch.float64), w_SBA.shape[2])
    return scales, encode(w_SBA / spread)


def _grouped(w_SBA: Tensor, group_size: int) -> Tensor:
    """Return [S, G, inputs of a group, B]; raises ShapeMismatch."""
    s, b, a = w_SBA.shape
    size = group_size or a
    if a % size or b % 8:
        raise ShapeMismatch(
            "int4 weights",
            got=w_SBA.shape,
            expected=f"inputs in groups of {size} and outputs in words of 8",
        )
    return w_SBA.transpose(1, 2).reshape(s, a // size, size, b)


def _divisor(scale_SB: Tensor) -> Tensor:
    return torch.where(scale_SB == 0, 1, scale_SB)[:, :, None]
