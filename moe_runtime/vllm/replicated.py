"""The exchange of ranks that all hold all tokens: none, since every rank computes its own slots.

Axes    T tokens   K experts per token   N ranks   S local slots   M rows at local slots   Z width

Right only if all ranks send a token to the same replica, which they do because they read the
same table by the token's row. What `combine` returns is this rank's part of a sum over the
ranks; vLLM adds it up together with what else is split over them.
"""

from dataclasses import dataclass

import torch

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.rows import AS_IS, RowCoder
from moe_runtime.contracts.stages import AllGatherCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.gathered import Seen, local_pairs
from moe_runtime.placement.maps import SlotLayout

__all__ = ["ReplicatedExchange"]


@dataclass(frozen=True, slots=True)
class ReplicatedExchange:
    """Meets `Exchange[AllGatherCarry]`."""

    layout: SlotLayout
    backend: Backend
    coder: RowCoder = AS_IS

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllGatherCarry]:
        """Pick the pairs of this rank's slots and sort them by slot.

        What a slot receives is counted as sent by its own rank: all ranks send the same.
        """
        seen = Seen(self.coder.encode(placed.x_TZ), placed.slots, placed.experts, placed.weights_TK)
        local = local_pairs(
            seen,
            torch.full((placed.x_TZ.shape[0],), view.rank, device=placed.x_TZ.device),
            base=self.layout.base(view.rank),
            shape_NS=(len(view.rows_N), self.layout.slots_per_rank[view.rank]),
            backend=self.backend,
        )
        return Dispatched(
            rows=local.rows,
            counts=local.counts,
            received_NS=local.received_NS,
            claimed_NS=local.claimed_NS,
            carry=AllGatherCarry(local.index_AK, placed.weights_TK, view.rows_N),
        )

    def combine(self, computed: Computed[AllGatherCarry]) -> Combined:
        """Sum what this rank's slots contribute to each token."""
        carry = computed.carry
        return Combined(
            self.backend.weighted_sum(computed.rows_MZ, carry.index_AK, carry.weights_AK)
        )
