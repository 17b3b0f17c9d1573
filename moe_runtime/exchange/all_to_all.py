"""Exchange by All2All: every token row goes only to the rank of its slot.

Axes    T tokens   K experts per token   N ranks   S local slots   P slots of all ranks
        Z width   M rows at local slots

Three collectives a layer: how many rows go to each slot, the rows (sorted by
slot, so that no slot numbers travel with them), and the rows on their way
back. Weights never leave the owner of the token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.ids import NOT_SENT
from moe_runtime.contracts.rows import PlainRows
from moe_runtime.contracts.stages import AllToAllCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.exchange.peers import Peers
from moe_runtime.placement.maps import SlotLayout

__all__ = ["AllToAllExchange"]


@dataclass(frozen=True, slots=True)
class AllToAllExchange:
    """Meets `Exchange[AllToAllCarry]`."""

    peers: Peers
    layout: SlotLayout
    backend: Backend

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllToAllCarry]:
        """Send rows sorted by slot, and sort what arrives by local slot."""
        slots_TK = placed.slots.ids_TK
        pairs = torch.nonzero(slots_TK.reshape(-1) != NOT_SENT).reshape(-1)
        slots = slots_TK.reshape(-1)[pairs]
        order = pairs[self.backend.order_by_group(slots)]
        counts_P = self.backend.count_groups(slots, self.layout.num_slots).counts_S
        received_NS = self._exchange_counts(counts_P, view)
        sent_N = _totals(split_rows(counts_P, self.layout.slots_per_rank))
        received_N = _totals(tuple(received_NS))
        tokens = torch.div(order, slots_TK.shape[1], rounding_mode="floor")
        arrived_MZ = self.peers.all_to_all(placed.x_TZ[tokens], sent_N, received_N)
        num_slots = received_NS.shape[1]
        slots_M = torch.repeat_interleave(
            torch.arange(num_slots).repeat(received_NS.shape[0]), received_NS.reshape(-1)
        )
        arrival_M = self.backend.order_by_group(slots_M)
        return Dispatched(
            rows=PlainRows(arrived_MZ[arrival_M]),
            counts=self.backend.count_groups(slots_M, num_slots),
            received_NS=received_NS,
            carry=AllToAllCarry(
                index_TK=_places(order, slots_TK.numel()).view_as(slots_TK),
                weights_TK=placed.weights_TK,
                arrival_M=arrival_M,
                sent_N=sent_N,
                received_N=received_N,
            ),
        )

    def combine(self, computed: Computed[AllToAllCarry]) -> Combined:
        """Send results back in the order they came, and sum each token's at its owner."""
        carry = computed.carry
        arrived_MZ = computed.rows_MZ[_inverse(carry.arrival_M)]
        back_MZ = self.peers.all_to_all(arrived_MZ, carry.received_N, carry.sent_N)
        return Combined(self.backend.weighted_sum(back_MZ, carry.index_TK, carry.weights_TK))

    def _exchange_counts(self, counts_P: Tensor, view: StepView) -> Tensor:
        """Return [N, S]: how many rows each rank sends to each local slot."""
        num_slots = self.layout.slots_per_rank[view.rank]
        received = self.peers.all_to_all(
            counts_P,
            sent=self.layout.slots_per_rank,
            received=[num_slots] * self.layout.num_ranks,
        )
        return received.view(self.layout.num_ranks, num_slots)


def _totals(parts: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(int(part.sum()) for part in parts)


def _inverse(order_M: Tensor) -> Tensor:
    return _places(order_M, order_M.numel())


def _places(order: Tensor, size: int) -> Tensor:
    """Return [size]: where each number stands in the order, -1 for one that is not in it."""
    places = torch.full((size,), -1, dtype=torch.int64)
    places[order] = torch.arange(order.numel())
    return places
