"""MC2 by Ascend's own pair of operators: dispatch to the slots of all ranks, and combine.

Axes    B rows of a rank's block   K experts per row   Z width   S local slots
        A rows that may arrive   G rows of all ranks together
"""

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_matmul_rule import E2M1, E4M3
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.ids import PhysicalIds
from moe_runtime.contracts.rows import (
    BLOCK,
    Fp8Rows,
    Int8Rows,
    Mx4Rows,
    Mx8Rows,
    PlainRows,
    RowForm,
    Rows,
)

__all__ = ["Block", "Communicator", "Mc2Sent", "NpuMc2"]


_QUANTISING: dict[RowForm, tuple[int, int | None]] = {
    RowForm.PLAIN: (0, None),
    RowForm.INT8: (2, None),
    RowForm.FP8: (2, E4M3),
    RowForm.MXFP8: (4, E4M3),
    RowForm.MXFP4: (4, E2M1),
}
"""How dispatch quantises into each form: the operator's number of the way, and of the elements."""


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
    weights_BK: Tensor
    """float32; of all rows, padding included."""


@dataclass(frozen=True, slots=True, eq=False)
class Mc2Sent:
    """What arrived, and what combine must be given again."""

    rows: Rows
    """[A], sorted by local slot; beyond the counts they mean nothing."""
    counts: GroupCounts
    slots_BK: Tensor
    """int32."""
    assist: Tensor
    ep_counts: Tensor
    tp_counts: Tensor
    expand_scales: Tensor | None
    """Weights of what arrived, which combine needs where nodes sum for themselves; else None."""


@dataclass(frozen=True, slots=True)
class NpuMc2:
    """The operators over one communicator. Every rank calls both, in the same order."""

    door: NpuDoor
    communicator: Communicator
    num_slots: int
    """Of all ranks; the same number on each."""
    by_nodes: bool = False
    """Whether a row crosses to another node once, and is spread and summed inside it."""

    def dispatch(self, block: Block, form: RowForm) -> Mc2Sent:
        """Send rows to their slots, quantised on the way if the form says so.

        Raises NpuCallRefused, before anything is sent.
        """
        mode, elements = _QUANTISING[form]
        slots_BK = block.slots.ids_TK.to(torch.int32)
        communicator = self.communicator
        x_AZ, scale_A, assist, counts_S, ep_counts, tp_counts, weights_A = self.door.call(
            "npu_moe_distribute_dispatch_v2",
            x=block.x_BZ,
            expert_ids=slots_BK,
            group_ep=communicator.name,
            ep_world_size=communicator.size,
            ep_rank_id=communicator.rank,
            moe_expert_num=self.num_slots,
            scales=None,
            x_active_mask=block.active_B,
            expert_scales=block.weights_BK if self.by_nodes else None,
            group_tp=communicator.name,
            tp_world_size=1,
            tp_rank_id=0,
            expert_shard_type=0,
            shared_expert_num=1,
            shared_expert_rank_num=0,
            quant_mode=mode,
            global_bs=block.global_rows,
            expert_token_nums_type=1,
            comm_alg=self._algorithm,
            y_dtype=elements,
            x_dtype=None,
            scales_dtype=None,
        )
        rows = _rows(form, x_AZ, scale_A, block.x_BZ)
        # Without nodes its shape is not the same everywhere, and nothing reads it.
        kept = weights_A if self.by_nodes else None
        counts = GroupCounts(counts_S)
        return Mc2Sent(rows, counts, slots_BK, assist, ep_counts, tp_counts, kept)

    def combine(self, rows_AZ: Tensor, sent: Mc2Sent, block: Block) -> Tensor:
        """Return [B, Z]: each row's results, weighed and summed at its owner."""
        communicator = self.communicator
        (summed_BZ,) = self.door.call(
            "npu_moe_distribute_combine_v2",
            expand_x=rows_AZ,
            expert_ids=sent.slots_BK,
            assist_info_for_combine=sent.assist,
            ep_send_counts=sent.ep_counts,
            expert_scales=block.weights_BK,
            group_ep=communicator.name,
            ep_world_size=communicator.size,
            ep_rank_id=communicator.rank,
            moe_expert_num=self.num_slots,
            tp_send_counts=sent.tp_counts,
            x_active_mask=block.active_B,
            expand_scales=sent.expand_scales,
            shared_expert_x=None,
            group_tp=communicator.name,
            tp_world_size=1,
            tp_rank_id=0,
            expert_shard_type=0,
            shared_expert_num=1,
            shared_expert_rank_num=0,
            global_bs=block.global_rows,
            comm_quant_mode=0,
            comm_alg=self._algorithm,
        )
        return summed_BZ

    @property
    def _algorithm(self) -> str:
        return "hierarchy" if self.by_nodes else ""


def _rows(form: RowForm, q: Tensor, scales: Tensor, x_BZ: Tensor) -> Rows:
    """Return what arrived; the scales of blocks come in pairs, and rows keep those of theirs."""
    match form:
        case RowForm.PLAIN:
            return PlainRows(q)
        case RowForm.INT8:
            return Int8Rows(q, scales, x_BZ.dtype)
        case RowForm.FP8:
            return Fp8Rows(q, scales, x_BZ.dtype)
        case RowForm.MXFP8 | RowForm.MXFP4:
            kept = scales.view(torch.uint8)[:, : -(-x_BZ.shape[1] // BLOCK)]
            rows = Mx8Rows if form is RowForm.MXFP8 else Mx4Rows
            return rows(q.view(torch.uint8) if form is RowForm.MXFP4 else q, kept, x_BZ.dtype)
    assert_never(form)
