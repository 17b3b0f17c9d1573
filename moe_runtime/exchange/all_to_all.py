"""Exchange by All2All: every token row goes only to the rank of its slot.

Axes    T tokens   K experts per token   N ranks   S local slots   P slots of all ranks
        Z width   M rows at local slots

Three collectives a layer: how many rows go to each slot and for whom, the rows with their
scales (sorted by slot, so that no slot numbers travel with them), and the rows on their way
back. Weights never leave the owner of the token. Rows are encoded while the counts are on their
way; the counts are read, which the host must do to size what arrives, once they have arrived.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.rows import AS_IS, RowCoder, Rows, pick_rows
from moe_runtime.contracts.stages import AllToAllCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.exchange.encoding import encode
from moe_runtime.exchange.parcels import pack
from moe_runtime.exchange.peers import Peers, Pending
from moe_runtime.exchange.places import claims, inverse, sort_pairs
from moe_runtime.placement.maps import SlotLayout

__all__ = ["AllToAllExchange"]


@dataclass(frozen=True, slots=True)
class AllToAllExchange:
    """Meets `Exchange[AllToAllCarry]`."""

    peers: Peers
    layout: SlotLayout
    backend: Backend
    coder: RowCoder = AS_IS

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllToAllCarry]:
        """Send rows sorted by slot, and sort what arrives by local slot."""
        pairs = sort_pairs(placed.slots, self.layout.num_slots, self.backend)
        claimed_P = claims(
            placed.slots.ids_TK.reshape(-1),
            placed.experts.ids_TK.reshape(-1),
            self.layout.num_slots,
        )
        told = self._tell(torch.stack((pairs.counts_P, claimed_P), dim=1), view)
        leaving = pick_rows(encode(placed, self.coder), pairs.tokens_M)
        received_NS, claimed_NS = told.wait().view(self.layout.num_ranks, -1, 2).unbind(dim=2)
        sent_N = _totals(split_rows(pairs.counts_P, self.layout.slots_per_rank))
        received_N = _totals(tuple(received_NS))
        arrived = self._exchange_rows(leaving, sent_N, received_N)
        num_slots = received_NS.shape[1]
        slots_M = torch.repeat_interleave(
            torch.arange(num_slots).repeat(received_NS.shape[0]), received_NS.reshape(-1)
        )
        arrival_M = self.backend.order_by_group(slots_M)
        return Dispatched(
            # From one rank alone they come sorted, and go back as they came.
            rows=arrived if self.peers.size == 1 else pick_rows(arrived, arrival_M),
            counts=self.backend.count_groups(slots_M, num_slots),
            received_NS=received_NS,
            claimed_NS=claimed_NS,
            carry=AllToAllCarry(
                index_TK=pairs.index_TK,
                weights_TK=placed.weights_TK,
                arrival_M=arrival_M,
                sent_N=sent_N,
                received_N=received_N,
            ),
        )

    def combine(self, computed: Computed[AllToAllCarry]) -> Combined:
        """Send results back in the order they came, and sum each token's at its owner."""
        carry = computed.carry
        alone = self.peers.size == 1
        rows_MZ = computed.rows_MZ
        arrived_MZ = rows_MZ if alone else rows_MZ.index_select(0, inverse(carry.arrival_M))
        back_MZ = self.peers.all_to_all(arrived_MZ, carry.received_N, carry.sent_N)
        return Combined(self.backend.weighted_sum(back_MZ, carry.index_TK, carry.weights_TK))

    def _tell(self, told_P2: Tensor, view: StepView) -> Pending:
        """Begin to tell each rank how many rows come to its slots, and for which experts."""
        num_slots = self.layout.slots_per_rank[view.rank]
        return self.peers.start_all_to_all(
            told_P2,
            self.layout.slots_per_rank,
            [num_slots] * self.layout.num_ranks,
            what="how many rows go to each slot",
        )

    def _exchange_rows(
        self, rows: Rows, sent_N: tuple[int, ...], received_N: tuple[int, ...]
    ) -> Rows:
        """Exchange rows and their scales as one."""
        packed, parcel = pack(rows.parts())
        pending = self.peers.start_all_to_all(packed, sent_N, received_N, what="token rows")
        return rows.of(parcel.unpack(pending.wait()))


def _totals(parts: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(int(part.sum()) for part in parts)
