"""Quantising rows on Ascend NPUs, in every form that experts read there.

Axes    M rows   Z width of a row   C = ceil(Z / 32) blocks of a row   Y = Z / 2 bytes

The operators' scales of blocks come in pairs, an odd number of blocks with one more; rows keep
those that are theirs, so that they are the same numbers on every device.
"""

from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_matmul_rule import E2M1, E4M3
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.rows import (
    BLOCK,
    Fp8Rows,
    Int8Rows,
    Mx4Rows,
    Mx8Rows,
    PlainRows,
    RowForm,
    Rows,
)

__all__ = ["quantise", "swiglu_to_int8", "takes_swiglu"]

_LANE = 64
_WIDEST = 10496
"""Of what npu_dequant_swiglu_quant returns for rows in groups: at most so many, in whole lanes."""


def quantise(door: NpuDoor, x_MZ: Tensor, form: RowForm) -> Rows:
    """Return rows in a form, each from itself alone; raises NpuCallRefused."""
    match form:
        case RowForm.PLAIN:
            return PlainRows(x_MZ)
        case RowForm.INT8:
            q_MZ, scale_M = _by_row(door, x_MZ, torch.int8)
            return Int8Rows(q_MZ, scale_M, x_MZ.dtype)
        case RowForm.FP8:
            q_MZ, scale_M = _by_row(door, x_MZ, torch.float8_e4m3fn)
            return Fp8Rows(q_MZ, scale_M, x_MZ.dtype)
        case RowForm.MXFP8:
            q_MZ, scale_MC = _by_block(door, x_MZ, E4M3)
            return Mx8Rows(q_MZ, scale_MC, x_MZ.dtype)
        case RowForm.MXFP4:
            q_MY, scale_MC = _by_block(door, x_MZ, E2M1)
            return Mx4Rows(q_MY, scale_MC, x_MZ.dtype)
    assert_never(form)


def takes_swiglu(gate_up_MF: Tensor, form: RowForm) -> bool:
    """Tell whether `swiglu_to_int8` takes these rows; the others go through two operators."""
    num_rows, width = gate_up_MF.shape
    fits = width % (2 * _LANE) == 0 and width <= 2 * _WIDEST
    return form is RowForm.INT8 and gate_up_MF.dtype is torch.bfloat16 and fits and num_rows > 0


def swiglu_to_int8(door: NpuDoor, gate_up_MF: Tensor, counts: GroupCounts) -> Int8Rows:
    """Return silu(gate) * up in int8 by npu_dequant_swiglu_quant, of rows in groups.

    The text names bfloat16 and int32 rows. These are products that the grouped matmul has scaled
    already, so nothing is left to dequantise. Rows beyond the groups get anything.
    """
    q_MI, scale_M = door.call(
        "npu_dequant_swiglu_quant",
        x=gate_up_MF,
        weight_scale=None,
        activation_scale=None,
        bias=None,
        quant_scale=None,
        quant_offset=None,
        group_index=counts.counts_S,
        activate_left=True,
        quant_mode=1,
        dst_type=None,
        round_mode=None,
        activate_dim=None,
        # The plain one: limit, alpha and bias are of the other, whose layout no text tells.
        swiglu_mode=0,
        clamp_limit=7.0,
        glu_alpha=1.702,
        glu_bias=1.0,
    )
    return Int8Rows(q_MI, scale_M, gate_up_MF.dtype)


def _by_row(door: NpuDoor, x_MZ: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    q_MZ, scale_M = door.call(
        "npu_dynamic_quant",
        input=x_MZ,
        smooth_scales=None,
        group_index=None,
        dst_type=dtype,
        quant_mode="pertoken",
    )
    return q_MZ, scale_M


def _by_block(door: NpuDoor, x_MZ: Tensor, number: int) -> tuple[Tensor, Tensor]:
    q, scale_MP2 = door.call(
        "npu_dynamic_mx_quant",
        input=x_MZ,
        axis=-1,
        round_mode="rint",
        dst_type=number,
        block_size=BLOCK,
        scale_alg=0,
    )
    return q, scale_MP2.flatten(1)[:, : -(-x_MZ.shape[1] // BLOCK)]
