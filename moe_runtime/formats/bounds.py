"""How far a quantised row may be from what it was: each form's own error, by its definition.

Axes    M rows   Z width of a row

    int8     half a step of the row: max |x| / 254
    fp8      half a step of a mantissa of 3 bits: |x| / 16; below the normals a fixed step
    mxfp8    likewise by block; a number above 448 times its scale, up to 512 times, is kept as
             448 times: |x| / 8
    mxfp4    half a step of a mantissa of 1 bit, or 8 times the scale kept as 6 times: |x| / 4;
             below the normals half of 0.5 times the scale
"""

from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends.codes import block_scales, decode_e8m0, expand_blocks
from moe_runtime.contracts.rows import RowForm

__all__ = ["row_error"]

_FLOAT32 = 2.0**-22
"""Scales and quotients are rounded to float32; four roundings at most."""


def row_error(size_MZ: Tensor, form: RowForm) -> Tensor:
    """Return float64 [M, Z]: the greatest error of rows whose numbers are at most of that size."""
    size_MZ = size_MZ.abs().to(torch.float64)
    rounding_MZ = size_MZ.amax(dim=1, keepdim=True) * _FLOAT32
    match form:
        case RowForm.PLAIN:
            return torch.zeros_like(size_MZ)
        case RowForm.INT8:
            return (size_MZ.amax(dim=1, keepdim=True) / 254 + rounding_MZ).expand_as(size_MZ)
        case RowForm.FP8:
            smallest = size_MZ.amax(dim=1, keepdim=True) / 448 * 2.0**-10
            return size_MZ / 16 + smallest + rounding_MZ
        case RowForm.MXFP8:
            return size_MZ / 8 + _scales(size_MZ, 8) * 2.0**-10 + rounding_MZ
        case RowForm.MXFP4:
            return size_MZ / 4 + _scales(size_MZ, 2) / 4 + rounding_MZ
    assert_never(form)


def _scales(size_MZ: Tensor, largest_exponent: int) -> Tensor:
    codes = block_scales(size_MZ.to(torch.float32), largest_exponent=largest_exponent)
    return expand_blocks(decode_e8m0(codes, torch.float64), size_MZ.shape[1])
