"""Grouped linears on CPU in every pairing of stored matrices and row forms: the specification.

Axes    M rows   A input width   B output width   G groups of the input

What is quantised is multiplied in float64, where products of so few bits are exact, and rounded
once to the rows' dtype: a result does not depend on which other rows are in its group. What no
kernel pairs is refused.
"""

from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends.codes import decode_e2m1, decode_e8m0, expand_blocks, unpack_int4
from moe_runtime.backends.cpu_rows import dequantise
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
from moe_runtime.contracts.rows import Fp8Rows, Int8Rows, Mx4Rows, Mx8Rows, PlainRows, Rows
from moe_runtime.contracts.torch_calls import to_ints

__all__ = ["grouped_linear", "output_width", "slot_matrix"]

_WIDE = torch.float64


def grouped_linear(rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
    """Return [M, B] in the rows' dtype; rows beyond all groups get anything.

    Raises UnreadableRows.
    """
    num_rows, width = rows.parts()[0].shape[0], output_width(linear)
    out_MB = torch.empty((num_rows, width), dtype=rows.dtype)
    if not _is_paired(rows, linear):
        raise UnreadableRows(
            f"in the form {rows.form.value}", weights=f"stored as {type(linear).__name__}"
        )
    if isinstance(rows, PlainRows) and isinstance(linear, DenseLinear):
        return _multiply(rows.x_MZ, linear, counts, out_MB)
    x_MA = dequantise(rows)
    start = 0
    for slot, size in enumerate(to_ints(counts.counts_S)):
        if size:
            end = start + size
            if isinstance(rows, Int8Rows) and isinstance(linear, Int4Linear):
                part = Int8Rows(rows.q_MZ[start:end], rows.scale_M[start:end], rows.dtype)
                out_MB[start:end] = _in_halves(part, linear, slot).to(rows.dtype)
            else:
                out_MB[start:end] = (x_MA[start:end] @ slot_matrix(linear, slot).t()).to(rows.dtype)
            start = end
    return out_MB


def slot_matrix(linear: Linear, slot: int) -> Tensor:
    """Return float64 [B, A]: what one slot's matrix stands for, exactly."""
    match linear:
        case DenseLinear(w_SBA):
            return w_SBA[slot].to(_WIDE)
        case Int8Linear(w_SBA, scale_SB) | Fp8Linear(w_SBA, scale_SB):
            return w_SBA[slot].to(_WIDE) * scale_SB[slot].to(_WIDE)[:, None]
        case Int4Linear(w_SAW, scale_SGB):
            scale_AB = _by_group(scale_SGB[slot], w_SAW.shape[1])
            return (unpack_int4(w_SAW[slot]).to(_WIDE) * scale_AB).t()
        case Int4A16Linear(w_SAW, scale_SGB, offset_SGB):
            scale_AB = _by_group(scale_SGB[slot], w_SAW.shape[1])
            offset_AB = _by_group(offset_SGB[slot], w_SAW.shape[1])
            return ((unpack_int4(w_SAW[slot]).to(_WIDE) + offset_AB) * scale_AB).t()
        case Mx8Linear(w_SBA, scale_SBC):
            scale_BA = expand_blocks(decode_e8m0(scale_SBC[slot], _WIDE), w_SBA.shape[2])
            return w_SBA[slot].to(_WIDE) * scale_BA
        case Mx4Linear(w_SBY, scale_SBC):
            numbers_BA = decode_e2m1(w_SBY[slot], _WIDE)
            return numbers_BA * expand_blocks(
                decode_e8m0(scale_SBC[slot], _WIDE), numbers_BA.shape[1]
            )
    assert_never(linear)


def _multiply(x_MA: Tensor, linear: DenseLinear, counts: GroupCounts, out_MB: Tensor) -> Tensor:
    """Fill `out_MB`; empty groups cost nothing."""
    start = 0
    for slot, size in enumerate(to_ints(counts.counts_S)):
        if size:
            end = start + size
            torch.mm(x_MA[start:end], linear.w_SBA[slot].t(), out=out_MB[start:end])
            start = end
    return out_MB


def _in_halves(rows: Int8Rows, linear: Int4Linear, slot: int) -> Tensor:
    """Return float64 [M, B] the way of int4 kernels: high half, low half, and the scale bias."""
    x_MA = rows.q_MZ.to(torch.int64)
    high_MA = torch.div(x_MA, 16, rounding_mode="floor")
    low_MA = x_MA - 16 * high_MA - 8
    matrix_AB = slot_matrix(linear, slot).t()
    sum_MB = 16 * (high_MA.to(_WIDE) @ matrix_AB) + low_MA.to(_WIDE) @ matrix_AB
    biased_MB = sum_MB + linear.scale_bias_SB[slot].to(_WIDE)
    return biased_MB * rows.scale_M.to(_WIDE)[:, None]


def _by_group(scales_GB: Tensor, width: int) -> Tensor:
    """Return float64 [A, B]: the number of each input's group."""
    return scales_GB.to(_WIDE).repeat_interleave(width // scales_GB.shape[0], dim=0)


def output_width(linear: Linear) -> int:
    """Return B."""
    match linear:
        case Int4Linear(w_SAW) | Int4A16Linear(w_SAW):
            return 8 * w_SAW.shape[2]
        case DenseLinear(w_S) | Int8Linear(w_S) | Fp8Linear(w_S) | Mx8Linear(w_S) | Mx4Linear(w_S):
            return w_S.shape[1]
    assert_never(linear)


def _is_paired(rows: Rows, linear: Linear) -> bool:
    match rows:
        case PlainRows():
            return isinstance(linear, DenseLinear | Int4A16Linear | Mx4Linear)
        case Int8Rows():
            return isinstance(linear, Int8Linear | Int4Linear)
        case Fp8Rows():
            return isinstance(linear, Fp8Linear)
        case Mx8Rows():
            return isinstance(linear, Mx8Linear | Mx4Linear)
        case Mx4Rows():
            return isinstance(linear, Mx4Linear)
    assert_never(rows)
