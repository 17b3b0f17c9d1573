"""All2All on Ascend NPUs: the same collectives, with rows sorted by the device's operator.

Axes    T tokens   K experts per token   N ranks   S local slots   P slots of all ranks   M rows
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_expand import expand
from moe_runtime.contracts.rows import AS_IS, RowCoder, Rows
from moe_runtime.contracts.stages import AllToAllCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.torch_calls import split_rows, to_ints
from moe_runtime.exchange.all_to_all import AllToAllExchange
from moe_runtime.exchange.encoding import encode
from moe_runtime.exchange.parcels import pack
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.places import tell
from moe_runtime.placement.maps import SlotLayout

__all__ = ["NpuAllToAllExchange"]


@dataclass(frozen=True, slots=True)
class NpuAllToAllExchange:
    """Meets `Exchange[AllToAllCarry]`."""

    peers: Peers
    layout: SlotLayout
    backend: NpuBackend
    coder: RowCoder = AS_IS
    read: Callable[[Tensor], list[int]] = to_ints
    """Brings counts to the host, waiting for them: the one wait of this exchange."""

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllToAllCarry]:
        """Send rows sorted by slot, and sort what arrives by local slot."""
        slots_TK, experts_TK = placed.slots.ids_TK, placed.experts.ids_TK
        told_P2 = tell(slots_TK, experts_TK, self.layout.num_slots)
        num_slots = self.layout.slots_per_rank[view.rank]
        num_ranks = self.layout.num_ranks
        pending = self.peers.start_all_to_all(
            told_P2,
            self.layout.slots_per_rank,
            [num_slots] * num_ranks,
            what="how many rows go to each slot",
        )
        leaving = expand(
            self.backend.door, encode(placed, self.coder), slots_TK, self.layout.num_slots
        )
        by_rank = split_rows(leaving.counts.counts_S, self.layout.slots_per_rank)
        received_NS, claimed_NS = pending.wait().view(num_ranks, num_slots, 2).unbind(dim=2)
        totals = self.read(torch.cat((torch.stack([p.sum() for p in by_rank]), received_NS.sum(1))))
        sent_N, received_N = tuple(totals[:num_ranks]), tuple(totals[num_ranks:])
        arrived = self._exchange_rows(leaving.rows, sent_N, received_N)
        slots_M = torch.repeat_interleave(
            torch.arange(num_slots, device=slots_TK.device).repeat(num_ranks),
            received_NS.reshape(-1),
            output_size=sum(received_N),
        )
        sorted_rows = expand(self.backend.door, arrived, slots_M[:, None], num_slots)
        return Dispatched(
            rows=sorted_rows.rows,
            counts=sorted_rows.counts,
            received_NS=received_NS,
            claimed_NS=claimed_NS,
            carry=AllToAllCarry(
                index_TK=leaving.index_TK,
                weights_TK=placed.weights_TK,
                arrival_M=self.backend.order_by_group(sorted_rows.index_TK[:, 0]),
                sent_N=sent_N,
                received_N=received_N,
            ),
        )

    def combine(self, computed: Computed[AllToAllCarry]) -> Combined:
        """Send results back in the order they came, and sum each token's at its owner."""
        plain = AllToAllExchange(self.peers, self.layout, self.backend, self.coder)
        return plain.combine(computed)

    def _exchange_rows(
        self, rows: Rows, sent_N: tuple[int, ...], received_N: tuple[int, ...]
    ) -> Rows:
        packed, parcel = pack([part[: sum(sent_N)] for part in rows.parts()])
        pending = self.peers.start_all_to_all(packed, sent_N, received_N, what="token rows")
        return rows.of(parcel.unpack(pending.wait()))
