"""What npu_grouped_matmul is documented to take, for each pairing of rows and matrices.

Axes    M rows   S groups   A input width   B output width   G groups of the input
        C = ceil(A / 64) pairs of blocks

Plain rows, int8 and int4 after the texts that come with torch-npu; float8 and float4, which have
none there, after what vllm-ascend passes and torch_npu's shape functions take.
"""

import torch
from torch import Tensor

from moe_runtime.backends.npu_given import Given

__all__ = ["E2M1", "E4M3", "E8M0", "grouped_matmul"]

E4M3, E8M0, E2M1 = 292, 293, 296
"""The numbers by which torch_npu's operators know float8 e4m3, scales that are powers of two, and
two float4 e2m1 in a byte."""
_HALVES = (torch.bfloat16, torch.float16)
_FLOATS = (torch.float32, *_HALVES)
_BFLOAT16 = (torch.bfloat16,)
_FLOAT32 = (torch.float32,)
_BYTES = (torch.uint8,)
_FP8 = torch.float8_e4m3fn
_MOST_GROUPS = 1024
_INNER_LIMIT = 65536
_PAIR = 64
"""Inputs of two blocks, whose scales stand side by side."""


def grouped_matmul(given: Given) -> None:
    """Refuse what the operator is not documented to take."""
    x = given.only("x", None, None, dtypes=(*_FLOATS, torch.int8, _FP8, torch.uint8))
    weight = given.only("weight", None, None, None, dtypes=_WEIGHTS[x.dtype])
    _widths(given, x, weight)
    given.tensor("group_list", weight.shape[0], dtypes=(torch.int64,))
    given.one_of(split_item=(3,), group_type=(0,), group_list_type=(0,), act_type=(0,))
    match x.dtype, weight.dtype:
        case torch.int8, torch.int32:
            _int4_of_int8(given, x, weight)
        case torch.int8, _:
            _by_token(given, x, weight)
        case torch.uint8, _:
            _blocks(given, x, weight, elements=E2M1)
        case torch.float8_e4m3fn, _ if given.arguments["scale_dtype"] is not None:
            _blocks(given, x, weight, elements=None)
        case torch.float8_e4m3fn, _:
            _by_token(given, x, weight)
        case _, torch.int32:
            _int4_of_plain(given, x, weight)
        case _:
            _plain(given, x, weight)


_WEIGHTS: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float32: (torch.float32,),
    torch.bfloat16: (torch.bfloat16, torch.int32),
    torch.float16: (torch.float16, torch.int32),
    torch.int8: (torch.int8, torch.int32),
    _FP8: (_FP8,),
    torch.uint8: _BYTES,
}
_NO_TYPES = dict.fromkeys(
    ("x_dtype", "weight_dtype", "scale_dtype", "per_token_scale_dtype"), (None,)
)


def _widths(given: Given, x: Tensor, weight: Tensor) -> None:
    num_slots, width_in, width_out = weight.shape
    if width_in != x.shape[1]:
        raise given.refusal("weight", got=f"{width_in} deep", expected=f"{x.shape[1]} as x")
    if num_slots > _MOST_GROUPS:
        raise given.refusal("weight", got=f"{num_slots} slots", expected=f"{_MOST_GROUPS} at most")
    if max(width_in, width_out) >= _INNER_LIMIT:
        raise given.refusal(
            "weight", got=f"{width_in} by {width_out}", expected=f"less than {_INNER_LIMIT} each"
        )


def _absent(given: Given, *names: str) -> None:
    given.one_of(**dict.fromkeys(names, (None,)))


def _plain(given: Given, x: Tensor, weight: Tensor) -> None:
    del weight
    _absent(given, "bias", "scale", "antiquant_scale", "antiquant_offset", "per_token_scale")
    given.one_of(output_dtype=(x.dtype,), **_NO_TYPES)


def _by_token(given: Given, x: Tensor, weight: Tensor) -> None:
    """Refuse all but int8 or float8 on both sides, with a scale for each output and each row."""
    num_slots, _, width_out = weight.shape
    _absent(given, "bias", "antiquant_scale", "antiquant_offset")
    given.one_of(output_dtype=_HALVES if x.dtype == torch.int8 else _BFLOAT16, **_NO_TYPES)
    is_wide = x.dtype == _FP8 or given.arguments["output_dtype"] == torch.float16
    scaled = _FLOAT32 if is_wide else _BFLOAT16
    given.only("scale", num_slots, width_out, dtypes=scaled)
    given.only("per_token_scale", x.shape[0], dtypes=_FLOAT32)


def _int4_of_int8(given: Given, x: Tensor, weight: Tensor) -> None:
    num_slots, width_in, words = weight.shape
    _absent(given, "antiquant_scale", "antiquant_offset")
    given.one_of(output_dtype=_BFLOAT16, **_NO_TYPES)
    _scales_of_groups(given, "scale", weight, dtypes=(torch.int64,))
    given.only("bias", num_slots, 8 * words, dtypes=_FLOAT32)
    given.only("per_token_scale", x.shape[0], dtypes=_FLOAT32)
    del width_in


def _int4_of_plain(given: Given, x: Tensor, weight: Tensor) -> None:
    _absent(given, "bias", "scale", "per_token_scale")
    given.one_of(output_dtype=(x.dtype,), **_NO_TYPES)
    for name in ("antiquant_scale", "antiquant_offset"):
        _scales_of_groups(given, name, weight, dtypes=(x.dtype,))


def _scales_of_groups(
    given: Given, name: str, weight: Tensor, *, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Refuse all but [S, B], or [S, G, B] with groups that divide the input."""
    num_slots, width_in, words = weight.shape
    if _axes(given, name) == 2:
        given.only(name, num_slots, 8 * words, dtypes=dtypes)
        return
    scales = given.only(name, num_slots, None, 8 * words, dtypes=dtypes)
    if not scales.shape[1] or width_in % scales.shape[1]:
        raise given.refusal(
            name, got=f"{scales.shape[1]} groups", expected=f"groups that divide {width_in}"
        )


def _axes(given: Given, name: str) -> int:
    """Return how many axes the tensor in a list of one has; 0 for anything else."""
    match given.arguments[name]:
        case [Tensor() as inside]:
            return inside.ndim
        case _:
            return 0


def _blocks(given: Given, x: Tensor, weight: Tensor, *, elements: int | None) -> None:
    """Refuse all but rows and matrices in blocks, with their scales in pairs."""
    num_slots, depth, width_out = weight.shape
    pairs = -(-depth * (1 if elements is None else 2) // _PAIR)
    _absent(given, "bias", "antiquant_scale", "antiquant_offset")
    given.one_of(
        output_dtype=_BFLOAT16,
        x_dtype=(elements,),
        weight_dtype=(elements,),
        scale_dtype=(E8M0,),
        per_token_scale_dtype=(E8M0,),
    )
    given.only("scale", num_slots, pairs, width_out, 2, dtypes=_BYTES)
    given.only("per_token_scale", x.shape[0], pairs, 2, dtypes=_BYTES)
