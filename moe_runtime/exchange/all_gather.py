"""Exchange by AllGather: every rank sees all tokens and computes those of its own slots.

Axes    T tokens of this rank   A tokens of all ranks
        N ranks   K experts per token   Z width   S local slots   M rows at local slots

Two collectives a layer: one gather of tokens, slots and weights packed in one
buffer of bytes (how many come from each rank, the step's announcement told),
and one exchange of partial sums, which the owner adds in order of rank.
"""

from dataclasses import dataclass

import torch

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.ids import PhysicalIds
from moe_runtime.contracts.rows import PlainRows
from moe_runtime.contracts.stages import AllGatherCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.exchange.peers import Peers
from moe_runtime.placement.maps import SlotLayout

__all__ = ["AllGatherExchange"]


@dataclass(frozen=True, slots=True)
class AllGatherExchange:
    """Meets `Exchange[AllGatherCarry]`."""

    peers: Peers
    layout: SlotLayout
    backend: Backend

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllGatherCarry]:
        """Gather all tokens and sort the pairs of this rank's slots by slot."""
        gathered = _gather(self.peers, placed, view)
        num_slots = self.layout.slots_per_rank[view.rank]
        local_AK = gathered.slots.ids_TK - self.layout.base(view.rank)
        pairs_M = torch.nonzero(((local_AK >= 0) & (local_AK < num_slots)).reshape(-1)).reshape(-1)
        slots_M = local_AK.reshape(-1)[pairs_M]
        order_M = self.backend.order_by_group(slots_M)
        tokens_M = torch.div(pairs_M, local_AK.shape[1], rounding_mode="floor")
        index = torch.full((local_AK.numel(),), -1, dtype=torch.int64)
        index[pairs_M[order_M]] = torch.arange(pairs_M.numel())
        sources_A = torch.repeat_interleave(torch.tensor(view.rows_N))
        received = self.backend.count_groups(
            sources_A[tokens_M] * num_slots + slots_M, len(view.rows_N) * num_slots
        )
        return Dispatched(
            rows=PlainRows(gathered.x_TZ[tokens_M[order_M]]),
            counts=self.backend.count_groups(slots_M, num_slots),
            received_NS=received.counts_S.view(len(view.rows_N), num_slots),
            carry=AllGatherCarry(index.view_as(local_AK), gathered.weights_TK, view.rows_N),
        )

    def combine(self, computed: Computed[AllGatherCarry]) -> Combined:
        """Sum this rank's share of every token, and add the shares at the token's owner."""
        carry = computed.carry
        partial_AZ = self.backend.weighted_sum(computed.rows_MZ, carry.index_AK, carry.weights_AK)
        num_own = carry.rows_N[self.peers.rank]
        shares = self.peers.all_to_all(
            partial_AZ, sent=carry.rows_N, received=[num_own] * self.peers.size
        )
        return Combined(shares.view(self.peers.size, num_own, shares.shape[1]).sum(dim=0))


def _gather(peers: Peers, placed: Placed, view: StepView) -> Placed:
    """Return the placed tokens of all ranks, in order of rank."""
    parts = (placed.x_TZ, placed.slots.ids_TK, placed.weights_TK)
    # A column that was expanded has stride 0 and passes for contiguous; a clone has strides anew.
    plain = [part.clone(memory_format=torch.contiguous_format) for part in parts]
    packed = torch.cat([part.view(torch.uint8) for part in plain], dim=1)
    rows = peers.all_gather(packed, view.rows_N)
    widths = [part.shape[1] * part.element_size() for part in parts]
    x, slots, weights = (
        piece.clone(memory_format=torch.contiguous_format).view(part.dtype)
        for piece, part in zip(split_rows(rows, widths, dim=1), parts, strict=True)
    )
    return Placed(x, PhysicalIds(slots), weights)
