# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# Off in this file only: kernels get what the dispatcher gives them.
"""Emulated fused MC2 over gloo, under the schema of `_C_ascend`: after its source, not the source.

Matrices are kept in FRACTAL_NZ here too, so one that nobody arranged gives garbage, and rows beyond
the capacity are dropped without a word, as they are there.

Axes    B rows of a rank's block   K experts per row   Z width   S local slots
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.npu.emulation_mc2 import gathered
from tests.npu.quantising import dynamic_quant, undefined

__all__ = ["CUSTOM_SCHEMAS", "format_cast", "register_custom"]

CUSTOM_SCHEMAS: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "custom_schemas.json").read_text()
)
"""By the release whose library spells them, and operator."""


def _pieces(matrix: Tensor) -> tuple[int, int]:
    return 16, 32 // matrix.element_size()


def format_cast(**given: Any) -> Tensor:
    assert given["acl_format"] == 29
    matrix = given["input"]
    high, wide = _pieces(matrix)
    parts = matrix.unflatten(1, (-1, wide)).unflatten(0, (-1, high))
    return parts.permute(2, 0, 1, 3).reshape(matrix.shape)


def _from_nz(matrix: Tensor) -> Tensor:
    high, wide = _pieces(matrix)
    down, across = matrix.shape[0] // high, matrix.shape[1] // wide
    parts = matrix.reshape(across, down, high, wide).permute(1, 2, 0, 3)
    return parts.reshape(matrix.shape)


def _expert(x: Tensor, slot: int, given: dict[str, Any]) -> Tensor:
    """Rows of one slot through its expert, in float64; int8 rows are quantised from bfloat16."""
    w13, w2 = (_from_nz(given[name][slot]).double() for name in ("weight1", "weight2"))
    is_int8 = given["weight1"][slot].dtype is torch.int8
    if not is_int8:
        gate, up = (x.double() @ w13).to(x.dtype).double().chunk(2, dim=1)
        return (torch.nn.functional.silu(gate) * up).to(x.dtype).double() @ w2
    scale13, scale2 = (
        given[name][slot].to(torch.int32).view(torch.float32).double()
        for name in ("scale1", "scale2")
    )
    q, scale = dynamic_quant(input=x)
    gate, up = ((q.double() @ w13) * scale.double()[:, None] * scale13).chunk(2, dim=1)
    limit = given["swiglu_limit"]
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    q, scale = dynamic_quant(input=torch.nn.functional.silu(gate) * up)
    return (q.double() @ w2) * scale.double()[:, None] * scale2


def dispatch_ffn_combine(**given: Any) -> tuple[Tensor, Tensor]:
    x, probs, rank = given["x"], given["probs"], dist.get_rank()
    num_slots = len(given["weight1"])
    is_int8 = given["weight1"][0].dtype is torch.int8
    rows, ids, weights = gathered(x), gathered(given["expert_idx"]), gathered(probs)
    mask: Tensor = given["x_active_mask"] if is_int8 else torch.ones(len(x), dtype=torch.bool)
    active = gathered(mask.to(torch.int32))  # all of them, in the kernel that knows no mask
    shares = torch.zeros((*rows.shape[:2], rows.shape[2]), dtype=torch.float64)
    left = given["max_output_size"]
    for slot in range(num_slots):
        pairs = torch.nonzero((ids == rank * num_slots + slot) & (active[:, :, None] == 1))[:left]
        left -= len(pairs)
        given["expert_token_nums"][slot] = len(pairs)
        if len(pairs):
            source, row, place = pairs.unbind(1)
            done = _expert(rows[source, row], slot, given).to(x.dtype).double()
            done = done * weights[source, row, place].double()[:, None]
            shares.index_put_((source, row), done, accumulate=True)
    dist.all_reduce(shares)
    out = shares[rank].to(x.dtype)
    out[~mask] = undefined(1, x.shape[1], dtype=x.dtype)
    given["out"].copy_(out)
    return given["out"], given["expert_token_nums"]


def register_custom(operators: Sequence[str] = ("dispatch_ffn_combine",)) -> torch.library.Library:
    """Define the operators and register their kernels; they stay as long as what is returned."""
    library = torch.library.Library("_C_ascend", "DEF")
    (texts,) = CUSTOM_SCHEMAS.values()
    for operator in operators:
        library.define(texts[operator])
        names = [a.name for a in getattr(torch.ops._C_ascend, operator).default._schema.arguments]

        def kernel(*given: Any, names: list[str] = names, **named: Any) -> tuple[Tensor, Tensor]:
            defaults = {"x_active_mask": None, "swiglu_limit": 1000000.0}
            by_name = dict(zip(names, given, strict=False))
            return dispatch_ffn_combine(**{**defaults, **by_name, **named})

        library.impl(operator, kernel, "CPU")
    return library
