"""AllGather on Ascend NPUs: the same collectives, with rows sorted by the device's operator.

Axes    A tokens of all ranks   K experts per token   N ranks   S local slots   M = A K rows
"""

from dataclasses import dataclass

import torch

from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_expand import expand
from moe_runtime.contracts.rows import AS_IS, RowCoder
from moe_runtime.contracts.stages import AllGatherCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.all_gather import AllGatherExchange
from moe_runtime.exchange.gathered import gather_placed, owners_of
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.places import tell
from moe_runtime.placement.maps import SlotLayout

__all__ = ["NpuAllGatherExchange"]


@dataclass(frozen=True, slots=True)
class NpuAllGatherExchange:
    """Meets `Exchange[AllGatherCarry]`. Sizes follow from the step alone: the host never waits."""

    peers: Peers
    layout: SlotLayout
    backend: NpuBackend
    coder: RowCoder = AS_IS

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllGatherCarry]:
        """Gather all tokens and sort the pairs of this rank's slots by slot."""
        seen = gather_placed(self.peers, placed, view.rows_N, self.coder)
        num_ranks, num_slots = len(view.rows_N), self.layout.slots_per_rank[view.rank]
        local_AK = seen.slots.ids_TK - self.layout.base(view.rank)
        local_AK = torch.where((local_AK >= 0) & (local_AK < num_slots), local_AK, -1)
        sources_A = owners_of(view.rows_N, local_AK.device)
        cells_AK = torch.where(local_AK >= 0, sources_A[:, None] * num_slots + local_AK, -1)
        told_C2 = tell(cells_AK, seen.experts.ids_TK, num_ranks * num_slots)
        received_NS, claimed_NS = told_C2.view(num_ranks, num_slots, 2).unbind(dim=2)
        expanded = expand(self.backend.door, seen.rows, local_AK, num_slots)
        return Dispatched(
            rows=expanded.rows,
            counts=expanded.counts,
            received_NS=received_NS,
            claimed_NS=claimed_NS,
            carry=AllGatherCarry(expanded.index_TK, seen.weights_AK, view.rows_N),
        )

    def combine(self, computed: Computed[AllGatherCarry]) -> Combined:
        """Sum this rank's share of every token, and add the shares at the token's owner."""
        plain = AllGatherExchange(self.peers, self.layout, self.backend, self.coder)
        return plain.combine(computed)
