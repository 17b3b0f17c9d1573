"""Grouped linears on Ascend NPUs: every pairing of rows and matrices as one operator's arguments.

Axes    M rows   S groups   A input width   B output width   G groups of the input
        C blocks of the input, 32 numbers each   Y = A / 2 bytes

A matrix is stored as `contracts.linears` says and seen as the operator wants it, scales and what is
derived included; nothing derived is kept, so nothing can be left behind when an expert moves.
"""

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor
from torch.nn.functional import pad

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_matmul_rule import E2M1, E8M0
from moe_runtime.contracts.errors import UnreadableRows
from moe_runtime.contracts.groups import GroupCounts
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
from moe_runtime.contracts.npu_errors import NpuKernelMissing
from moe_runtime.contracts.rows import Fp8Rows, Int8Rows, Mx4Rows, Mx8Rows, PlainRows, Rows
from moe_runtime.contracts.torch_calls import in_pieces

__all__ = ["grouped_linear"]

_ONE = 127
"""A power of two of one, as a byte: for the block that an odd number of them lacks to a pair."""
_LOW_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """What differs between pairings."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None
    antiquant_scale: Tensor | None = None
    antiquant_offset: Tensor | None = None
    per_token_scale: Tensor | None = None
    elements: int | None = None
    """The number of what is packed in x and weight, where torch has no type for it."""
    scales: int | None = None
    """The number of the type of both scales, where torch has none."""


def grouped_linear(door: NpuDoor, rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
    """Return [M, B] in the rows' dtype by npu_grouped_matmul; rows beyond groups get anything.

    Groups go out by where each ends: the operator takes counts only of two or more groups.

    Raises UnreadableRows for rows that the matrices do not read, and NpuKernelMissing.
    """
    given = _arguments(rows, linear)
    (out_MB,) = door.call(
        "npu_grouped_matmul",
        x=[given.x],
        weight=[given.weight],
        bias=_listed(given.bias),
        scale=_listed(given.scale),
        antiquant_scale=_listed(given.antiquant_scale),
        antiquant_offset=_listed(given.antiquant_offset),
        per_token_scale=_listed(given.per_token_scale),
        group_list=counts.to_offsets().ends_S,
        split_item=3,
        group_type=0,
        group_list_type=0,
        act_type=0,
        output_dtype=rows.dtype,
        x_dtype=given.elements,
        weight_dtype=given.elements,
        scale_dtype=given.scales,
        per_token_scale_dtype=given.scales,
    )
    return out_MB


def _arguments(rows: Rows, linear: Linear) -> _Arguments:
    match rows, linear:
        case PlainRows(), DenseLinear() | Int4A16Linear():
            return _of_plain(rows, linear)
        case Int8Rows(), Int8Linear() | Int4Linear():
            return _of_int8(rows, linear)
        case Fp8Rows(x_MA, scale_M), Fp8Linear(w_SBA, scale_SB):
            weight = w_SBA.transpose(1, 2)
            return _Arguments(x=x_MA, weight=weight, scale=scale_SB, per_token_scale=scale_M)
        case (Mx8Rows(), Mx8Linear()) | (Mx4Rows(), Mx4Linear()):
            return _of_blocks(rows, linear)
        case PlainRows() | Mx8Rows(), Mx4Linear():
            raise NpuKernelMissing(
                f"{rows.form.value} rows by float4 weights",
                reason="those weights must be cast to the device's own layout, which is not built",
            )
        case _:
            raise UnreadableRows(
                f"in the form {rows.form.value}", weights=f"stored as {type(linear).__name__}"
            )


def _of_plain(rows: PlainRows, linear: DenseLinear | Int4A16Linear) -> _Arguments:
    match linear:
        case DenseLinear(w_SBA):
            return _Arguments(x=rows.x_MZ, weight=w_SBA.transpose(1, 2))
        case Int4A16Linear(w_SAW, scale_SGB, offset_SGB):
            return _Arguments(
                x=rows.x_MZ,
                weight=w_SAW,
                antiquant_scale=_one_or_more(scale_SGB),
                antiquant_offset=_one_or_more(offset_SGB),
            )
    assert_never(linear)


def _of_int8(rows: Int8Rows, linear: Int8Linear | Int4Linear) -> _Arguments:
    x_MA, scale_M = rows.parts()
    match linear:
        case Int8Linear(w_SBA, scale_SB):
            # For bfloat16 rows the operator takes scales in bfloat16, so they are rounded to it.
            scale_SB = scale_SB if rows.dtype == torch.float16 else scale_SB.to(torch.bfloat16)
            weight = w_SBA.transpose(1, 2)
            return _Arguments(x=x_MA, weight=weight, scale=scale_SB, per_token_scale=scale_M)
        case Int4Linear(w_SAW, scale_SGB, scale_bias_SB):
            scale = _one_or_more(_in_words(scale_SGB))
            return _Arguments(
                x=x_MA, weight=w_SAW, bias=scale_bias_SB, scale=scale, per_token_scale=scale_M
            )
    assert_never(linear)


def _of_blocks(rows: Mx8Rows | Mx4Rows, linear: Mx8Linear | Mx4Linear) -> _Arguments:
    codes, scale_MC = rows.parts()
    w_S = linear.w_SBA if isinstance(linear, Mx8Linear) else linear.w_SBY
    return _Arguments(
        x=codes,
        weight=w_S.transpose(1, 2),
        scale=_in_pairs(linear.scale_SBC).transpose(1, 2),
        per_token_scale=_in_pairs(scale_MC),
        elements=E2M1 if isinstance(linear, Mx4Linear) else None,
        scales=E8M0,
    )


def _listed(tensor: Tensor | None) -> list[Tensor] | None:
    return None if tensor is None else [tensor]


def _one_or_more(numbers_SGB: Tensor) -> Tensor:
    """Return [S, B] where there is one group of the input: an operator's scales by output."""
    return numbers_SGB[:, 0] if numbers_SGB.shape[1] == 1 else numbers_SGB


def _in_words(scale: Tensor) -> Tensor:
    """Return int64: float32 in the low word, rounded to what float16 has, as int4 kernels read."""
    bits = scale.to(torch.float16).to(torch.float32).view(torch.int32)
    return bits.to(torch.int64) & _LOW_WORD


def _in_pairs(scales_C: Tensor) -> Tensor:
    """Return [..., ceil(C / 2), 2]."""
    return in_pieces(pad(scales_C, (0, scales_C.shape[-1] % 2), value=_ONE), 2)
