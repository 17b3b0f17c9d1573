# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
# Off in this file only: kernels get what the dispatcher gives them.
"""CPU kernels under torch_npu's own schemas: an emulation of the operators, not the operators.

Written from the texts that the wheel carries; dispatch and combine, which have none there, from
what their shape functions tell. What a text leaves undefined is NaN (100 in int8), so that reading
it shows; what it calls unsupported is refused. A kernel of the device may do otherwise.

Axes    T, B rows   K experts per row   E, S groups   Z width   M rows sorted by group
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.npu.emulation_ffn import format_cast
from tests.npu.emulation_mc2 import combine, dispatch
from tests.npu.quantising import E2M1, dynamic_mx_quant, dynamic_quant, undefined

__all__ = ["CALLED", "KERNELS", "register"]

CALLED: set[str] = set()
"""Operators that somebody has called: a kernel that nobody calls says nothing."""


def gating_top_k(x: Tensor, k: int, **given: Any) -> tuple[Tensor, Tensor, Tensor]:
    assert given["renorm"] == 0, "the text takes 0 only"
    scores = x.float().sigmoid() if given["norm_type"] == 1 else x.float().softmax(1)
    judged = scores if given["bias"] is None else scores + given["bias"].float()
    groups, kept = given["group_count"], given["k_group"]
    if groups > 1:
        by_group = judged.view(judged.shape[0], groups, -1)
        best = by_group.topk(2 if given["group_select_mode"] else 1, dim=2).values.sum(2)
        left_out = torch.ones_like(best).scatter_(1, best.topk(kept, dim=1).indices, 0).bool()
        judged = by_group.masked_fill(left_out[:, :, None], -torch.inf).flatten(1)
    ids = judged.topk(k, dim=1).indices
    weights = scores.gather(1, ids)
    if given["norm_type"] == 1:
        weights = weights / (weights.sum(1, keepdim=True) + given["eps"])
    weights = weights * given["routed_scaling_factor"]
    return weights.to(x.dtype), ids.int(), undefined(*x.shape, dtype=torch.float32)


def init_routing(x: Tensor, expert_idx: Tensor, **given: Any) -> tuple[Tensor, ...]:
    assert given["quant_mode"] == -1
    first, end = given["active_expert_range"]
    ids, k = expert_idx.reshape(-1).long(), expert_idx.shape[1]
    assert bool((ids < given["expert_num"]).all()), "an id beyond the experts is undefined"
    active = torch.nonzero((ids >= first) & (ids < end)).reshape(-1)
    order = active[torch.sort(ids[active], stable=True).indices]
    rows = undefined(ids.numel(), x.shape[1], dtype=x.dtype)
    rows[: order.numel()] = x[order // k]
    index = torch.full((ids.numel(),), -1, dtype=torch.int32)
    index[order] = torch.arange(order.numel(), dtype=torch.int32)
    scales = undefined(ids.numel(), dtype=torch.float32)
    if given["scale"] is not None:
        scales[: order.numel()] = given["scale"][order // k]
    return rows, index, torch.bincount(ids[active] - first, minlength=end - first), scales


def dequant_swiglu_quant(x: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    assert (given["quant_mode"], given["swiglu_mode"]) == (1, 0)
    assert given["activate_left"], "the right half would be the gate"
    total, width = int(given["group_index"].sum()), x.shape[1] // 2
    assert width % 64 == 0, "the text takes whole lanes of 64 of rows in groups"
    gate, up = x[:total].float().chunk(2, dim=1)
    q = undefined(x.shape[0], width, dtype=torch.int8)
    scale = undefined(x.shape[0], dtype=torch.float32)
    q[:total], scale[:total] = dynamic_quant(input=torch.nn.functional.silu(gate) * up)
    return q, scale


def _powers(pairs: Tensor, width: int) -> Tensor:
    """Scales of blocks along the last axis but one, for each of `width` numbers: [..., width]."""
    spread = torch.exp2(pairs.flatten(-2).double() - 127)
    return spread.repeat_interleave(32, dim=-1)[..., :width]


def _fp4(codes: Tensor) -> Tensor:
    """Two numbers of a byte along the last axis, the first in its low half."""
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).long()
    return torch.cat((E2M1, -E2M1)).double()[nibbles]


def _int4(words: Tensor) -> Tensor:
    """Eight numbers of a word along the last axis, the first in its lowest bits."""
    nibbles = (words.long()[..., None] >> (4 * torch.arange(8))) & 15
    return torch.where(nibbles > 7, nibbles - 16, nibbles).flatten(-2).double()


def _of_inputs(scale: Tensor, depth: int) -> Tensor:
    """Scales by group of the input, or by output only, for each input: [A, B]."""
    grouped = scale if scale.ndim == 2 else scale[None]
    return grouped.double().repeat_interleave(depth // grouped.shape[0], dim=0)


def _group_product(x: Tensor, weight: Tensor, group: int, given: dict[str, Any]) -> Tensor:
    def of(name: str) -> Tensor:
        return given[name][0][group]

    if weight.dtype == torch.int32 and x.dtype == torch.int8:
        # int4 kernels read a row as 16 hi + lo + 8, and leave the 8 to the bias.
        words = of("scale")
        assert not bool((words >> 32).any()), "the high word of a scale is not read"
        scale = words.to(torch.int32).view(torch.float32)
        assert torch.equal(scale, scale.half().float()), "a scale that no float16 has"
        matrix = _int4(weight) * _of_inputs(scale, weight.shape[0])
        return (x.double() - 8) @ matrix + of("bias").double()
    if weight.dtype == torch.int32:
        scale, offset = (_of_inputs(of(f"antiquant_{n}"), len(weight)) for n in ("scale", "offset"))
        return x.double() @ ((_int4(weight) + offset) * scale)
    product = x.double() @ weight.double()
    return product * of("scale").double() if given["scale"] else product


def _blocked(x: Tensor, weight: Tensor, group: int, given: dict[str, Any]) -> Tensor:
    assert given["scale_dtype"] == given["per_token_scale_dtype"] == 293
    is_fp4 = given["x_dtype"] == given["weight_dtype"] == 296
    matrix_t = _fp4(weight.t()) if is_fp4 else weight.t().double()
    scales = _powers(given["scale"][0][group].transpose(0, 1), x.shape[1])
    return x @ (matrix_t * scales).t()


def grouped_matmul(x: list[Tensor], weight: list[Tensor], **given: Any) -> list[Tensor]:
    assert given["group_list_type"] == 0
    dtypes = {6: torch.float32, 15: torch.bfloat16, 5: torch.float16}
    # The schema's int is a number of a type, which the dispatcher makes of a torch.dtype.
    asked = given["output_dtype"]
    wanted = asked if isinstance(asked, torch.dtype) else dtypes[asked]
    rows, per_token, blocked = x[0], given["per_token_scale"], given["scale_dtype"] is not None
    width = weight[0].shape[2] * (8 if weight[0].dtype == torch.int32 else 1)
    out = undefined(rows.shape[0], width, dtype=wanted)
    start = 0
    for group, end in enumerate(given["group_list"].tolist()):
        part = rows[start:end]
        if blocked:
            depth = part.shape[1] * (2 if given["x_dtype"] == 296 else 1)
            wide = (_fp4(part) if given["x_dtype"] == 296 else part.double()) * _powers(
                per_token[0][start:end], depth
            )
            product = _blocked(wide, weight[0][group], group, given)
        else:
            product = _group_product(part, weight[0][group], group, given)
            if per_token:
                product = product * per_token[0][start:end, None].double()
        out[start:end] = product.to(out.dtype)
        start = end
    return [out]


def token_unpermute(**given: Any) -> Tensor:
    rows, index, probs = given["permuted_tokens"], given["sorted_indices"], given["probs"]
    assert not given["padded_mode"]
    assert index.unique().numel() == index.numel(), "the text takes each row once"
    of_pairs = rows[index.long()].float().view(*probs.shape, rows.shape[1])
    return (of_pairs * probs.float()[..., None]).sum(1).to(rows.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_moe_gating_top_k": gating_top_k,
    "npu_moe_init_routing_v2": init_routing,
    "npu_dynamic_quant": dynamic_quant,
    "npu_dynamic_mx_quant": dynamic_mx_quant,
    "npu_grouped_matmul": grouped_matmul,
    "npu_format_cast": format_cast,
    "npu_dequant_swiglu_quant": dequant_swiglu_quant,
    "npu_moe_token_unpermute": token_unpermute,
    "npu_moe_distribute_dispatch_v2": dispatch,
    "npu_moe_distribute_combine_v2": combine,
}


def whole(operator: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Give a kernel all arguments by name: the dispatcher leaves out what equals a default."""
    schema = getattr(torch.ops.npu, operator).default._schema
    defaults = {a.name: a.default_value for a in schema.arguments}

    def run(*given: Any, **named: Any) -> Any:
        CALLED.add(operator)
        return kernel(**{**defaults, **dict(zip(defaults, given, strict=False)), **named})

    return run


def register() -> torch.library.Library:
    """Register the kernels for CPU tensors; they stay as long as what is returned is kept."""
    library = torch.library.Library("npu", "IMPL", "CPU")
    for operator, kernel in KERNELS.items():
        library.impl(operator, whole(operator, kernel))
    return library
