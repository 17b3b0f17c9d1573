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

__all__ = ["quantise"]


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
