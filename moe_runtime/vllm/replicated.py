"""The exchange of ranks that all hold all tokens: none, since every rank computes its own slots.

Axes    T tokens   K experts per token   N ranks   S local slots   M rows at local slots   Z width

Right only if all ranks send a token to the same replica, which they do because they read the
same table by the token's row. What `combine` returns is this rank's part of a sum over the
ranks; vLLM adds it up together with what else is split over them.
"""

from dataclasses import dataclass

import torch

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.stages import AllGatherCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.placement.maps import SlotLayout

__all__ = ["ReplicatedExchange"]


@dataclass(frozen=True, slots=True)
class ReplicatedExchange:
    """Meets `Exchange[AllGatherCarry]`."""

    layout: SlotLayout
    backend: Backend

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllGatherCarry]:
        """Pick the pairs of this rank's slots and sort them by slot.

        What a slot receives is counted as sent by its own rank: all ranks send the same.
        """
        num_slots = self.layout.slots_per_rank[view.rank]
        local_TK = placed.slots.ids_TK - self.layout.base(view.rank)
        pairs_M = torch.nonzero(((local_TK >= 0) & (local_TK < num_slots)).reshape(-1)).reshape(-1)
        slots_M = local_TK.reshape(-1)[pairs_M]
        order_M = self.backend.order_by_group(slots_M)
        tokens_M = torch.div(pairs_M, local_TK.shape[1], rounding_mode="floor")
        index = torch.full((local_TK.numel(),), -1, dtype=torch.int64)
        index[pairs_M[order_M]] = torch.arange(pairs_M.numel())
        counts = self.backend.count_groups(slots_M, num_slots)
        received_NS = counts.counts_S.new_zeros((len(view.rows_N), num_slots))
        received_NS[view.rank] = counts.counts_S
        return Dispatched(
            rows_MZ=placed.x_TZ[tokens_M[order_M]],
            counts=counts,
            received_NS=received_NS,
            carry=AllGatherCarry(index.view_as(local_TK), placed.weights_TK, view.rows_N),
        )

    def combine(self, computed: Computed[AllGatherCarry]) -> Combined:
        """Sum what this rank's slots contribute to each token."""
        carry = computed.carry
        return Combined(
            self.backend.weighted_sum(computed.rows_MZ, carry.index_AK, carry.weights_AK)
        )
