"""Rows to their groups by the device's operator, before they are sent and after they arrived.

Axes    T tokens   K groups per token   Z width
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.rows import (
    AdaptedRows,
    Fp8Rows,
    Int8Rows,
    Mx4Rows,
    Mx8Rows,
    PlainRows,
    Rows,
)

__all__ = ["Expanded", "expand"]


@dataclass(frozen=True, slots=True, eq=False)
class Expanded:
    """Rows copied once for each pair, sorted by group."""

    rows: Rows
    """[T K]; beyond the counts they mean nothing."""
    counts: GroupCounts
    index_TK: Tensor
    """int64 [T, K] row of each pair, -1 for one that has none."""


def expand(door: NpuDoor, rows: Rows, groups_TK: Tensor, num_groups: int) -> Expanded:
    """Copy rows to their groups by npu_moe_init_routing_v2, with their scales.

    groups_TK    group of each pair; a pair outside 0 to num_groups - 1 gets no row
    """
    scale: Tensor | None = None
    match rows:
        case PlainRows(x_TZ):  # the number of an adapter follows its row
            pass
        case Int8Rows(x_TZ, scale):
            pass
        case Fp8Rows(codes, _) | Mx8Rows(codes, _) | Mx4Rows(codes, _):
            x_TZ = codes.view(torch.int8)  # bytes are moved, and nothing is made of them
    num_tokens, k = groups_TK.shape
    if not num_tokens * k:
        none = GroupCounts(torch.zeros(num_groups, dtype=torch.int64, device=groups_TK.device))
        return Expanded(rows.of([part[:0] for part in rows.parts()]), none, groups_TK)
    outside = (groups_TK < 0) | (groups_TK >= num_groups)
    x_MZ, index_M, counts_S, scale_M = door.call(
        "npu_moe_init_routing_v2",
        x=x_TZ,
        expert_idx=torch.where(outside, num_groups, groups_TK).to(torch.int32),
        scale=scale,
        offset=None,
        active_num=num_tokens * k,
        expert_capacity=-1,
        # One group more than there are takes the pairs that get no row.
        expert_num=num_groups + 1,
        drop_pad_mode=0,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=-1,
        active_expert_range=[0, num_groups],
        row_idx_type=0,
        x_dtype=None,
    )
    index_TK = index_M.to(torch.int64).view(num_tokens, k)
    expanded = rows.of(_parts(rows, x_MZ, scale_M, index_TK))
    # A 310P counts in 32 bits.
    return Expanded(expanded, GroupCounts(counts_S.to(torch.int64)), index_TK)


def _parts(rows: Rows, x_MZ: Tensor, scale_M: Tensor, index_TK: Tensor) -> tuple[Tensor, ...]:
    """Return the parts of sorted rows; scales that the operator has not moved follow their rows."""
    match rows:
        case AdaptedRows(x_TZ, beside_T):
            pass
        case PlainRows():
            return (x_MZ,)
        case Int8Rows():
            return x_MZ, scale_M
        case Fp8Rows(x_TZ, beside_T) | Mx8Rows(x_TZ, beside_T) | Mx4Rows(x_TZ, beside_T):
            pass
    return x_MZ.view(x_TZ.dtype), beside_T[_tokens_in_order(index_TK)]


def _tokens_in_order(index_TK: Tensor) -> Tensor:
    """Return int64 [T K]: the token of each sorted row; of rows beyond the counts, any."""
    num_pairs = index_TK.numel()
    index = index_TK.reshape(-1)
    # One place more takes the pairs that have no row.
    places = torch.where(index < 0, num_pairs, index)
    tokens = torch.arange(num_pairs, device=index.device) // index_TK.shape[1]
    order_M = torch.zeros(num_pairs + 1, dtype=torch.int64, device=index.device)
    return order_M.scatter(0, places, tokens)[:num_pairs]
