"""Numbers of few bits as bytes and words, by their definitions; the specification of each.

    int4    two's complement, -8 to 7
    e4m3    float8 of torch (no infinities, largest 448)
    e2m1    float4 of the Open Compute Project: 0 0.5 1 1.5 2 3 4 6, and a sign
    e8m0    a power of two, 2 ** (byte - 127); 255 is not a number

Axes    N numbers   C = ceil(N / 32) blocks   Y = N / 2 bytes   W = N / 8 words; others before
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.rows import BLOCK
from moe_runtime.contracts.torch_calls import in_pieces

__all__ = [
    "E2M1_LARGEST",
    "E4M3_LARGEST",
    "block_scales",
    "decode_e2m1",
    "decode_e8m0",
    "encode_e2m1",
    "encode_e4m3",
    "expand_blocks",
    "pack_int4",
    "unpack_int4",
]

E4M3_LARGEST = 448.0
E2M1_LARGEST = 6.0
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127
_NOT_A_NUMBER = 255


def pack_int4(numbers_N: Tensor) -> Tensor:
    """Return int32 [..., W]: eight numbers from -8 to 7 in a word, the first in its lowest bits."""
    if numbers_N.shape[-1] % 8:
        raise ShapeMismatch(
            "int4 numbers", got=numbers_N.shape, expected="a multiple of 8 in a row"
        )
    nibbles = in_pieces(numbers_N.to(torch.int64) & 15, 8)
    words = (nibbles << (4 * torch.arange(8))).sum(dim=-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def unpack_int4(words_W: Tensor) -> Tensor:
    """Return int8 [..., N], what `pack_int4` was given."""
    nibbles = (words_W.to(torch.int64).unsqueeze(-1) >> (4 * torch.arange(8))) & 15
    return torch.where(nibbles > 7, nibbles - 16, nibbles).flatten(-2).to(torch.int8)


def encode_e4m3(numbers: Tensor) -> Tensor:
    """Return the nearest float8, ties to even; what is too large becomes the largest."""
    return numbers.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)


def encode_e2m1(numbers_N: Tensor) -> Tensor:
    """Return uint8 [..., Y]: the nearest float4, ties to even, two in a byte, first one low."""
    if numbers_N.shape[-1] % 2:
        raise ShapeMismatch("float4 numbers", got=numbers_N.shape, expected="an even row")
    size = numbers_N.abs().clamp(max=E2M1_LARGEST)
    # Steps are 0.5 up to 2, 1 up to 4 and 2 above; each part is rounded in its own step, and a
    # number rounded up to the end of its part is the first of the next.
    small = torch.round(size * 2)
    middle = torch.round(size) + 2
    large = torch.round(size / 2) + 4
    code = torch.where(size <= 2, small, torch.where(size <= 4, middle, large)).nan_to_num(7)
    sign = torch.signbit(numbers_N).to(torch.uint8) << 3
    nibbles = in_pieces(code.to(torch.uint8) | sign, 2)
    return nibbles[..., 0] | (nibbles[..., 1] << 4)


def decode_e2m1(bytes_Y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [..., N], exactly."""
    nibbles = torch.stack((bytes_Y & 15, bytes_Y >> 4), dim=-1).flatten(-2)
    table = torch.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=dtype)
    return table[nibbles.to(torch.int64)]


def block_scales(numbers_N: Tensor, *, largest_exponent: int) -> Tensor:
    """Return uint8 [..., C]: the shared scale of each block, e8m0.

    The exponent of a block's largest number less that of the element type's largest (8 for e4m3,
    2 for e2m1), as the MX specification says in its section 6.3. A block with a number that is
    not finite gets a scale that is not one, so that nothing hides it.
    """
    largest = _blocks(numbers_N).abs().amax(dim=-1)
    exponent = torch.frexp(largest).exponent.to(torch.int64) - 1 - largest_exponent
    code = torch.where(largest > 0, (exponent + _BIAS).clamp(0, 254), 0)
    return torch.where(largest.isfinite(), code, _NOT_A_NUMBER).to(torch.uint8)


def decode_e8m0(bytes_C: Tensor, dtype: torch.dtype) -> Tensor:
    """Return powers of two, exactly; NaN for 255."""
    exponent = bytes_C.to(torch.int64) - _BIAS
    scale = torch.ldexp(torch.ones(bytes_C.shape, dtype=torch.float64), exponent)
    return scale.masked_fill(bytes_C == _NOT_A_NUMBER, torch.nan).to(dtype)


def expand_blocks(scales_C: Tensor, width: int) -> Tensor:
    """Return [..., N = width]: the scale of each number."""
    return scales_C.repeat_interleave(BLOCK, dim=-1)[..., :width]


def _blocks(numbers_N: Tensor) -> Tensor:
    """Return [..., C, 32], the last block filled up with zeros."""
    return in_pieces(pad(numbers_N, (0, -numbers_N.shape[-1] % BLOCK)), BLOCK)
