"""Quantising rows on CPU: the specification of every row form.

Axes    M rows   Z width of a row

Scales are computed in float32, whatever the rows are, as the operators do.
"""

from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends.codes import (
    E4M3_LARGEST,
    block_scales,
    decode_e2m1,
    decode_e8m0,
    encode_e2m1,
    encode_e4m3,
    expand_blocks,
)
from moe_runtime.contracts.rows import Fp8Rows, Int8Rows, Mx4Rows, Mx8Rows, PlainRows, RowForm, Rows

__all__ = ["dequantise", "quantise"]


def quantise(x_MZ: Tensor, form: RowForm) -> Rows:
    """Return the rows in that form; each row depends on itself alone.

    int8    scale = max |x| / 127, q = round(x / scale), ties to even (npu_dynamic_quant)
    fp8     scale = max |x| / 448, q = x / scale as e4m3
    mx      blocks of 32 (npu_dynamic_mx_quant with scale_alg 0)

    A row with a number that is not finite stays not finite: its scale is not a number.
    """
    wide_MZ = x_MZ.to(torch.float32)
    match form:
        case RowForm.PLAIN:
            return PlainRows(x_MZ)
        case RowForm.INT8:
            scale_M = wide_MZ.abs().amax(dim=1) / 127
            q_MZ = torch.round(wide_MZ / _divisor(scale_M)).clamp(-127, 127).nan_to_num(0)
            return Int8Rows(q_MZ.to(torch.int8), scale_M, x_MZ.dtype)
        case RowForm.FP8:
            scale_M = wide_MZ.abs().amax(dim=1) / E4M3_LARGEST
            return Fp8Rows(encode_e4m3(wide_MZ / _divisor(scale_M)), scale_M, x_MZ.dtype)
        case RowForm.MXFP8:
            scales = block_scales(wide_MZ, largest_exponent=8)
            q_MZ = encode_e4m3(wide_MZ / _spread(scales, x_MZ.shape[1]))
            return Mx8Rows(q_MZ, scales, x_MZ.dtype)
        case RowForm.MXFP4:
            scales = block_scales(wide_MZ, largest_exponent=2)
            q_MY = encode_e2m1(wide_MZ / _spread(scales, x_MZ.shape[1]))
            return Mx4Rows(q_MY, scales, x_MZ.dtype)
    assert_never(form)


def dequantise(rows: Rows) -> Tensor:
    """Return float64 [M, Z]: what the rows stand for, exactly."""
    wide = torch.float64
    match rows:
        case PlainRows(x_MZ):
            return x_MZ.to(wide)
        case Int8Rows(q_MZ, scale_M) | Fp8Rows(q_MZ, scale_M):
            return q_MZ.to(wide) * scale_M.to(wide)[:, None]
        case Mx8Rows(q_MZ, scale_MB):
            return q_MZ.to(wide) * expand_blocks(decode_e8m0(scale_MB, wide), q_MZ.shape[1])
        case Mx4Rows(q_MY, scale_MB):
            numbers_MZ = decode_e2m1(q_MY, wide)
            return numbers_MZ * expand_blocks(decode_e8m0(scale_MB, wide), numbers_MZ.shape[1])
    assert_never(rows)


def _divisor(scale_M: Tensor) -> Tensor:
    """Return [M, 1]: what a row is divided by; a row of zeros is divided by one."""
    return torch.where(scale_M == 0, 1, scale_M)[:, None]


def _spread(scales_MB: Tensor, width: int) -> Tensor:
    """Return float64 [M, Z]: the scale of each number; 2 ** -127 is no normal float32."""
    return expand_blocks(decode_e8m0(scales_MB, torch.float64), width)
