# pyright: reportPrivateUsage=false
# Off in this file only: torch tells of writes to a tensor in no public place.
"""Dispatch, experts and combine in one custom operator: `_C_ascend`'s dispatch_ffn_combine.

Axes    B rows of a rank's block   K experts per row   Z width   I expert width   F = 2 I
        S local slots

It reads matrices in the device's own order of bytes (FRACTAL_NZ) and no other, whatever a tensor
says of itself: given them as slots hold them it would compute something else without a word. So
they are arranged for it, and arranged anew when a slot has been written to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_mc2 import Block, Communicator
from moe_runtime.contracts.npu_errors import NpuKernelMissing, RowsLost
from moe_runtime.contracts.torch_calls import to_ints
from moe_runtime.contracts.weights import (
    DenseWeights,
    ExpertWeights,
    FusedWeights,
    W8A8Weights,
)

__all__ = ["Arranged", "Arrangements", "NpuFfn", "check_computed"]

_NZ = 29
"""The number of that order of bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """The experts of one layer as the operator reads them, a tensor for each slot."""

    w13: list[Tensor]
    """[Z, F] of each slot."""
    w2: list[Tensor]
    """[I, Z] of each slot."""
    scales13: list[Tensor]
    """int64 [F] of each slot; for unquantised experts one of no numbers."""
    scales2: list[Tensor]

    @property
    def is_int8(self) -> bool:
        """Whether the experts are quantised, so that a mask is honoured."""
        return self.w13[0].dtype is torch.int8


class Arrangements:
    """Arranged experts by the stacks that they were made of: for each, twice its memory.

    What a stack is written to, by whomever, is seen by its count of writes.
    """

    def __init__(self, door: NpuDoor) -> None:
        self._door = door
        self._kept: dict[int, tuple[tuple[ReferenceType[Tensor], ...], list[int], Arranged]] = {}

    def of(self, weights: ExpertWeights) -> Arranged:
        """Return a layer's experts, arranged; raises NpuKernelMissing for other formats."""
        stacks = _stacks(weights)
        key, writes = id(stacks[0]), [stack._version for stack in stacks]
        kept = self._kept.get(key)
        if kept is not None:
            of, then, arranged = kept
            if writes == then and all(r() is s for r, s in zip(of, stacks, strict=True)):
                return arranged
        arranged = self._arrange(stacks)
        alive = {k: v for k, v in self._kept.items() if all(r() is not None for r in v[0])}
        self._kept = {**alive, key: (tuple(ref(s) for s in stacks), writes, arranged)}
        return arranged

    def _arrange(self, stacks: tuple[Tensor, ...]) -> Arranged:
        w13, w2 = ([self._cast(w) for w in stack.unbind()] for stack in stacks[:2])
        if len(stacks) == 2:
            none = [torch.empty(0, dtype=torch.int64, device=w13[0].device)]
            return Arranged(w13, w2, none, none)
        # Copies, like the matrices: both show the slots at one moment.
        scales13, scales2 = ([*stack.clone().unbind()] for stack in stacks[2:])
        return Arranged(w13, w2, scales13, scales2)

    def _cast(self, w_BA: Tensor) -> Tensor:
        (cast,) = self._door.call(
            "npu_format_cast",
            input=w_BA.t().contiguous(),
            acl_format=_NZ,
            customize_dtype=None,
        )
        return cast


def _stacks(weights: ExpertWeights) -> tuple[Tensor, ...]:
    match weights:
        case FusedWeights(W8A8Weights(w13, w2), fused13_S, fused2_S):
            return w13.w_SBA, w2.w_SBA, fused13_S, fused2_S
        case DenseWeights(w13_SFZ, w2_SZI):
            return w13_SFZ, w2_SZI
        case _:
            raise NpuKernelMissing(
                f"fused MC2 of {type(weights).__name__}",
                reason="dispatch_ffn_combine is called for unquantised and W8A8 experts only",
            )


@dataclass(frozen=True, slots=True)
class NpuFfn:
    """The operator over MC2's communicator. Every rank calls it, with as many rows."""

    door: NpuDoor
    communicator: Communicator
    num_slots: int
    """Of all ranks; the same number on each."""
    capacity: int
    """Rows that a rank can receive, the same on each: beyond it the operator drops rows."""

    def run(self, block: Block, experts: Arranged, *, limit: float) -> tuple[Tensor, Tensor]:
        """Return [B, Z] of the block's rows, and int32 [S] rows that were computed here.

        limit    of SwiGLU, 0 for none

        Raises NpuCallRefused, before anything is sent.
        """
        out_BZ = torch.empty_like(block.x_BZ)
        counted_S = torch.zeros(len(experts.w13), dtype=torch.int32, device=out_BZ.device)
        self.door.call_custom(
            "dispatch_ffn_combine",
            x=block.x_BZ,
            weight1=experts.w13,
            weight2=experts.w2,
            expert_idx=block.slots.ids_TK.to(torch.int32),
            scale1=experts.scales13,
            scale2=experts.scales2,
            bias1=[],
            bias2=[],
            probs=block.weights_BK,
            group=self.communicator.name,
            max_output_size=self.capacity,
            out=out_BZ,
            expert_token_nums=counted_S,
            # The kernel of unquantised experts takes none, and computes padding rows too.
            x_active_mask=block.active_B if experts.is_int8 else None,
            swiglu_limit=limit,
        )
        return out_BZ, counted_S


def check_computed(counted_S: Tensor, received: Sequence[int]) -> None:
    """Raise RowsLost unless each slot computed the rows that it was sent; the host waits for it."""
    counted = to_ints(counted_S)
    if counted != list(received):
        raise RowsLost(counted=counted, sent=received)
