"""Emulated operators that quantise rows: after the texts of torch-npu, not of the operators.

What a text leaves undefined is NaN, or 100 in whole numbers, so that reading it shows.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["E2M1", "dynamic_mx_quant", "dynamic_quant", "undefined"]

_UNDEFINED = 100


def undefined(*shape: int, dtype: torch.dtype) -> Tensor:
    filled = torch.full(shape, torch.nan if dtype.is_floating_point else _UNDEFINED)
    return filled.to(dtype)


def dynamic_quant(**given: Any) -> tuple[Tensor, Tensor]:
    wide = given["input"].float()
    if given.get("dst_type") in {torch.float8_e4m3fn, 24, 292}:
        scale = wide.abs().amax(-1) / 448
        q = wide / torch.where(scale == 0, 1, scale)[..., None]
        return q.clamp(-448, 448).to(torch.float8_e4m3fn), scale
    scale = wide.abs().amax(-1) / 127
    q = torch.round(wide / torch.where(scale == 0, 1, scale)[..., None]).clamp(-128, 127)
    return q.to(torch.int8), scale


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def dynamic_mx_quant(**given: Any) -> tuple[Tensor, Tensor]:
    """Blocks of 32, the last one filled up with zeros; scales in pairs, an odd one beside NaN."""
    assert (given["axis"], given["block_size"], given["scale_alg"]) == (-1, 32, 0)
    assert given["round_mode"] == "rint"
    wide, is_fp4 = given["input"].double(), given["dst_type"] == 296
    rows, width = wide.shape
    blocks = torch.nn.functional.pad(wide, (0, -width % 32)).view(rows, -(-width // 32), 32)
    largest = blocks.abs().amax(2)
    exponent = torch.floor(torch.log2(largest)) - (2 if is_fp4 else 8)
    exponent = torch.where(largest > 0, exponent, -127).clamp(-127, 127)
    scaled = (blocks / torch.exp2(exponent)[..., None]).flatten(1)[:, :width]
    codes = torch.full((rows, (exponent.shape[1] + 1) // 2 * 2), 255, dtype=torch.uint8)
    codes[:, : exponent.shape[1]] = (exponent + 127).to(torch.uint8)
    pairs = codes.view(rows, codes.shape[1] // 2, 2)
    if not is_fp4:
        return scaled.clamp(-448, 448).to(torch.float8_e4m3fn), pairs
    # The nearest of the eight; of two as near, the one whose last bit is zero.
    off = (scaled.abs().clamp(max=6)[..., None] - E2M1).abs() + torch.arange(8) % 2 * 1e-9
    nibbles = off.argmin(2) | (torch.signbit(scaled).long() << 3)
    return (nibbles[:, ::2] | (nibbles[:, 1::2] << 4)).to(torch.uint8), pairs
