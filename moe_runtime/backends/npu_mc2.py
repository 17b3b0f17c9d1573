"""MC2 by Ascend's own pair of operators: dispatch to the slots of all ranks, and combine.

Axes    B rows of a rank's block   K experts per row   Z width   S local slots
        A rows that may arrive   G rows of all ranks together
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.ids import PhysicalIds
from moe_runtime.contracts.npu_errors import NpuKernelMissing
from moe_runtime.contracts.rows import Int8Rows, PlainRows, RowForm

__all__ = ["Block", "Communicator", "Mc2Sent", "NpuMc2"]


@dataclass(frozen=True, slots=True)
class Communicator:
    """An HCCL communicator that MC2 has for itself; operators know it by its name."""

    name: str
    rank: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What one rank brings."""

    x_BZ: Tensor
    slots: PhysicalIds
    active_B: Tensor | None
    """bool, tokens first; None where ranks bring uneven rows, all of them tokens."""
    global_rows: int
    """G, the same on every rank; 0 with a mask."""


@dataclass(frozen=True, slots=True, eq=False)
class Mc2Sent:
    """What arrived, and what combine must be given again."""

    rows: PlainRows | Int8Rows
    """[A], sorted by local slot; beyond the counts they mean nothing."""
    counts: GroupCounts
    slots_BK: Tensor
    """int32."""
    assist: Tensor
    ep_counts: Tensor
    tp_counts: Tensor


@dataclass(frozen=True, slots=True)
class NpuMc2:
    """The operators over one communicator. Every rank calls both, in the same order."""

    door: NpuDoor
    communicator: Communicator
    num_slots: int
    """Of all ranks; the same number on each."""

    def dispatch(self, block: Block, form: RowForm) -> Mc2Sent:
        """Send rows to their slots, quantised on the way if the form says so.

        Raises NpuCallRefused and NpuKernelMissing, before anything is sent.
        """
        if form not in (RowForm.PLAIN, RowForm.INT8):
            raise NpuKernelMissing(f"MC2 with rows in the form {form.value}", reason="not built")
        slots_BK = block.slots.ids_TK.to(torch.int32)
        communicator = self.communicator
        x_AZ, scale_A, assist, counts_S, ep_counts, tp_counts, _ = self.door.call(
            "npu_moe_distribute_dispatch_v2",
            x=block.x_BZ,
            expert_ids=slots_BK,
            group_ep=communicator.name,
            ep_world_size=communicator.size,
            ep_rank_id=communicator.rank,
            moe_expert_num=self.num_slots,
            scales=None,
            x_active_mask=block.active_B,
            expert_scales=None,
            group_tp=communicator.name,
            tp_world_size=1,
            tp_rank_id=0,
            expert_shard_type=0,
            shared_expert_num=1,
            shared_expert_rank_num=0,
            quant_mode=2 if form is RowForm.INT8 else 0,
            global_bs=block.global_rows,
            expert_token_nums_type=1,
            comm_alg="",
            y_dtype=None,
            x_dtype=None,
            scales_dtype=None,
        )
        dtype = block.x_BZ.dtype
        rows = Int8Rows(x_AZ, scale_A, dtype) if form is RowForm.INT8 else PlainRows(x_AZ)
        return Mc2Sent(rows, GroupCounts(counts_S), slots_BK, assist, ep_counts, tp_counts)

    def combine(self, rows_AZ: Tensor, sent: Mc2Sent, block: Block, weights_BK: Tensor) -> Tensor:
        """Return [B, Z]: each row's results, weighed and summed at its owner."""
        communicator = self.communicator
        (summed_BZ,) = self.door.call(
            "npu_moe_distribute_combine_v2",
            expand_x=rows_AZ,
            expert_ids=sent.slots_BK,
            assist_info_for_combine=sent.assist,
            ep_send_counts=sent.ep_counts,
            expert_scales=weights_BK.to(torch.float32),
            group_ep=communicator.name,
            ep_world_size=communicator.size,
            ep_rank_id=communicator.rank,
            moe_expert_num=self.num_slots,
            tp_send_counts=sent.tp_counts,
            x_active_mask=block.active_B,
            expand_scales=None,
            shared_expert_x=None,
            group_tp=communicator.name,
            tp_world_size=1,
            tp_rank_id=0,
            expert_shard_type=0,
            shared_expert_num=1,
            shared_expert_rank_num=0,
            global_bs=block.global_rows,
            comm_quant_mode=0,
            comm_alg="",
        )
        return summed_BZ
