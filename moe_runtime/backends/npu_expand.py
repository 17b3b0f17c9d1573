"""Rows to their groups by the device's operator, before they are sent and after they arrived.

Axes    T tokens   K groups per token   Z width
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.npu_errors import NpuKernelMissing
from moe_runtime.contracts.rows import AdaptedRows, Int8Rows, PlainRows, Rows

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

    Raises NpuKernelMissing.
    """
    match rows:
        case AdaptedRows():
            raise NpuKernelMissing("rows with adapters", reason="not built")
        case PlainRows(x_TZ):
            scale = None
        case Int8Rows(x_TZ, scale):
            pass
        case _:
            raise NpuKernelMissing(f"rows in the form {rows.form.value}", reason="not built")
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
    expanded = PlainRows(x_MZ) if scale is None else rows.of((x_MZ, scale_M))
    index_TK = index_M.to(torch.int64).view(num_tokens, k)
    return Expanded(expanded, GroupCounts(counts_S), index_TK)
