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
import torch.distributed as dist
from torch import Tensor

__all__ = ["KERNELS", "register"]

_UNDEFINED = 100
_ENTRIES = 3
"""Numbers of assist information that a row uses here: rank, row and place of its pair."""


def undefined(*shape: int, dtype: torch.dtype) -> Tensor:
    filled = torch.full(shape, torch.nan if dtype.is_floating_point else _UNDEFINED)
    return filled.to(dtype)


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


def gathered(rows: Tensor) -> Tensor:
    """Rows of all ranks, as many of each: [N, B, ...]."""
    out = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    bytes_of = [part.view(torch.uint8) for part in out]  # gloo knows no float8
    dist.all_gather(bytes_of, rows.contiguous().view(torch.uint8))
    return torch.stack(out)


def _quantised(x: Tensor, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    match given["quant_mode"]:
        case 2:
            return dynamic_quant(input=x, dst_type=given["y_dtype"])
        case 4:
            q, pairs = dynamic_mx_quant(
                input=x,
                dst_type=given["y_dtype"],
                axis=-1,
                block_size=32,
                scale_alg=0,
                round_mode="rint",
            )
            return q, pairs.flatten(1)
        case _:
            return x, torch.zeros(x.shape[0])


def dispatch(x: Tensor, expert_ids: Tensor, **given: Any) -> tuple[Tensor, ...]:
    ranks, rank, num_slots = (given[n] for n in ("ep_world_size", "ep_rank_id", "moe_expert_num"))
    of_rank = num_slots // ranks
    q, scale = _quantised(x, given)
    rows, scales, ids = gathered(q), gathered(scale), gathered(expert_ids)
    active = gathered(given["x_active_mask"].to(torch.int32))
    most = x.shape[0] * ranks * min(of_rank, expert_ids.shape[1])
    out = undefined(most, q.shape[1], dtype=q.dtype)
    out_scales = undefined(most, *scale.shape[1:], dtype=scale.dtype)
    assist = torch.full((max(expert_ids.numel(), most * 128),), -1, dtype=torch.int32)
    counts: list[int] = []
    taken = 0
    for slot in range(rank * of_rank, (rank + 1) * of_rank):
        pairs = torch.nonzero((ids == slot) & (active[:, :, None] == 1)).int()
        for source, row, place in pairs.tolist():
            out[taken], out_scales[taken] = rows[source, row], scales[source, row]
            entry = torch.tensor([source, row, place], dtype=torch.int32)
            assist[taken * _ENTRIES : (taken + 1) * _ENTRIES] = entry
            taken += 1
        counts.append(len(pairs))
    nothing = torch.zeros(num_slots, dtype=torch.int32)
    return out, out_scales, assist, torch.tensor(counts), nothing, nothing[:1], torch.zeros(0)


def combine(expand_x: Tensor, expert_scales: Tensor, **given: Any) -> Tensor:
    rows, weights, rank = expand_x, expert_scales, given["ep_rank_id"]
    assist = given["assist_info_for_combine"]
    every_row, every_assist = gathered(rows), gathered(assist)
    out = torch.zeros(weights.shape[0], rows.shape[1])
    for source_rows, told in zip(every_row, every_assist, strict=True):
        for at, (owner, row, place) in enumerate(
            told[: rows.shape[0] * _ENTRIES].view(-1, 3).tolist()
        ):
            if owner == rank:
                out[row] += weights[row, place] * source_rows[at].float()
    return out.to(rows.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_moe_gating_top_k": gating_top_k,
    "npu_moe_init_routing_v2": init_routing,
    "npu_dynamic_quant": dynamic_quant,
    "npu_dynamic_mx_quant": dynamic_mx_quant,
    "npu_grouped_matmul": grouped_matmul,
    "npu_moe_token_unpermute": token_unpermute,
    "npu_moe_distribute_dispatch_v2": dispatch,
    "npu_moe_distribute_combine_v2": combine,
}


def whole(operator: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Give a kernel all arguments by name: the dispatcher leaves out what equals a default."""
    schema = getattr(torch.ops.npu, operator).default._schema
    defaults = {a.name: a.default_value for a in schema.arguments}

    def run(*given: Any, **named: Any) -> Any:
        return kernel(**{**defaults, **dict(zip(defaults, given, strict=False)), **named})

    return run


def register() -> torch.library.Library:
    """Register the kernels for CPU tensors; they stay as long as what is returned is kept."""
    library = torch.library.Library("npu", "IMPL", "CPU")
    for operator, kernel in KERNELS.items():
        library.impl(operator, whole(operator, kernel))
    return library
