"""Right grouped matmuls of every format, and what may be wrong with each."""

from typing import Any

import torch

__all__ = [
    "ABSENT",
    "F32",
    "I8",
    "I32",
    "I64",
    "IN_FORMATS",
    "PAIRINGS",
    "Arguments",
    "E",
    "H",
    "K",
    "N",
    "T",
    "W",
    "int_rows",
    "meta",
]

Arguments = dict[str, Any]
ABSENT = object()
T, H, W, E, K, N = 6, 64, 32, 8, 2, 4
I8, I32, I64, F32 = torch.int8, torch.int32, torch.int64, torch.float32


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def int_rows(**given: Any) -> Arguments:
    """Change a grouped matmul to int8 rows by int8 weights."""
    right = {
        "x": [meta(T * K, H, dtype=I8)],
        "weight": [meta(E, H, 2 * W, dtype=I8)],
        "scale": [meta(E, 2 * W)],
        "per_token_scale": [meta(T * K, dtype=F32)],
    }
    return {**right, **given}


WORDS = [meta(E, H, 2 * W // 8, dtype=I32)]
BLOCKS: Arguments = {
    "scale_dtype": 293,
    "per_token_scale_dtype": 293,
    "scale": [meta(E, 1, 2 * W, 2, dtype=torch.uint8)],
    "per_token_scale": [meta(T * K, 1, 2, dtype=torch.uint8)],
}
FP8 = torch.float8_e4m3fn
PAIRINGS: dict[str, Arguments] = {
    "w8a8": int_rows(),
    "w4a8": int_rows(
        weight=WORDS, scale=[meta(E, 2, 2 * W, dtype=I64)], bias=[meta(E, 2 * W, dtype=F32)]
    ),
    "w4a16": {
        "weight": WORDS,
        "antiquant_scale": [meta(E, 2 * W)],
        "antiquant_offset": [meta(E, 2 * W)],
    },
    "w8a8-fp8": int_rows(
        x=[meta(T * K, H, dtype=FP8)],
        weight=[meta(E, H, 2 * W, dtype=FP8)],
        scale=[meta(E, 2 * W, dtype=F32)],
    ),
    "w8a8-mxfp8": {
        **BLOCKS,
        "x": [meta(T * K, H, dtype=FP8)],
        "weight": [meta(E, H, 2 * W, dtype=FP8)],
    },
    "w4a4-mxfp4": {
        **BLOCKS,
        "x": [meta(T * K, H // 2, dtype=torch.uint8)],
        "weight": [meta(E, H // 2, 2 * W, dtype=torch.uint8)],
        "x_dtype": 296,
        "weight_dtype": 296,
    },
}
"""One right grouped matmul of each format that is not plain."""

IN_FORMATS: list[tuple[str, Arguments]] = [
    ("w4a8", {"scale": [meta(E, 2, 2 * W, dtype=F32)]}),
    ("w4a8", {"scale": [meta(E, 3, 2 * W, dtype=I64)]}),
    ("w4a8", {"bias": None}),
    ("w4a8", {"output_dtype": torch.float16}),
    ("w4a16", {"antiquant_offset": None}),
    ("w4a16", {"antiquant_scale": [meta(E, 2 * W, dtype=torch.float16)]}),
    ("w4a16", {"per_token_scale": [meta(T * K, dtype=F32)]}),
    ("w8a8-fp8", {"scale": [meta(E, 2 * W)]}),
    ("w8a8-fp8", {"weight": [meta(E, H, 2 * W, dtype=I8)]}),
    ("w8a8-fp8", {"x_dtype": 292}),
    ("w8a8-mxfp8", {"scale": [meta(E, 2, 2 * W, dtype=torch.uint8)]}),
    ("w8a8-mxfp8", {"per_token_scale_dtype": None}),
    ("w4a4-mxfp4", {"x_dtype": None}),
    ("w4a4-mxfp4", {"weight": [meta(E, H, 2 * W, dtype=torch.uint8)]}),
    ("w4a4-mxfp4", {"output_dtype": torch.float16}),
]
"""One thing wrong each in the grouped matmul of a format."""
