# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# Off in this file only: kernels get what the dispatcher gives them.
"""Emulated MC2 over gloo: written from what the shape functions of its operators tell.

Axes    B rows of a rank's block   K experts per row   Z width
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.npu.quantising import dynamic_mx_quant, dynamic_quant, undefined

__all__ = ["combine", "dispatch", "gathered"]

_ENTRIES = 3
"""Numbers of assist information that a row uses here: rank, row and place of its pair."""


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
    by_nodes = given["comm_alg"] == "hierarchy"
    weights = gathered(given["expert_scales"]) if by_nodes else None
    most = x.shape[0] * ranks * min(of_rank, expert_ids.shape[1])
    out = undefined(most, q.shape[1], dtype=q.dtype)
    out_scales = undefined(most, *scale.shape[1:], dtype=scale.dtype)
    assist = torch.full((max(expert_ids.numel(), most * 128),), -1, dtype=torch.int32)
    out_weights = undefined(most if by_nodes else 0, dtype=torch.float32)
    counts: list[int] = []
    taken = 0
    for slot in range(rank * of_rank, (rank + 1) * of_rank):
        pairs = torch.nonzero((ids == slot) & (active[:, :, None] == 1)).int()
        for source, row, place in pairs.tolist():
            out[taken], out_scales[taken] = rows[source, row], scales[source, row]
            entry = torch.tensor([source, row, place], dtype=torch.int32)
            assist[taken * _ENTRIES : (taken + 1) * _ENTRIES] = entry
            if weights is not None:
                out_weights[taken] = weights[source, row, place]
            taken += 1
        counts.append(len(pairs))
    nothing = torch.zeros(num_slots, dtype=torch.int32)
    return out, out_scales, assist, torch.tensor(counts), nothing, nothing[:1], out_weights


def combine(expand_x: Tensor, expert_scales: Tensor, **given: Any) -> Tensor:
    rows, weights, rank = expand_x, expert_scales, given["ep_rank_id"]
    assist = given["assist_info_for_combine"]
    every_row, every_assist = gathered(rows), gathered(assist)
    by_nodes = given["comm_alg"] == "hierarchy"
    # Nodes sum for themselves, by the weights that came with the rows.
    came = gathered(given["expand_scales"]) if by_nodes else None
    out = torch.zeros(weights.shape[0], rows.shape[1])
    for sender, (source_rows, told) in enumerate(zip(every_row, every_assist, strict=True)):
        for at, (owner, row, place) in enumerate(
            told[: rows.shape[0] * _ENTRIES].view(-1, 3).tolist()
        ):
            if owner == rank:
                weight = weights[row, place] if came is None else came[sender, at]
                out[row] += weight * source_rows[at].float()
    return out.to(rows.dtype)
