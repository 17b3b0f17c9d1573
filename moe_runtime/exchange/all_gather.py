"""Exchange by AllGather: every rank sees all tokens and computes those of its own slots.

Axes    T tokens of this rank   A tokens of all ranks
        N ranks   K experts per token   Z width   S local slots   M rows at local slots

Two collectives a layer: one gather of tokens, slots and weights packed in one
buffer of bytes (how many come from each rank, the step's announcement told),
and one exchange of partial sums, which the owner adds in order of rank.
"""

from dataclasses import dataclass

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.rows import AS_IS, RowCoder
from moe_runtime.contracts.stages import AllGatherCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.gathered import gather_placed, local_pairs, owners_of
from moe_runtime.exchange.peers import Peers
from moe_runtime.placement.maps import SlotLayout

__all__ = ["AllGatherExchange"]


@dataclass(frozen=True, slots=True)
class AllGatherExchange:
    """Meets `Exchange[AllGatherCarry]`."""

    peers: Peers
    layout: SlotLayout
    backend: Backend
    coder: RowCoder = AS_IS

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllGatherCarry]:
        """Gather all tokens and sort the pairs of this rank's slots by slot."""
        seen = gather_placed(self.peers, placed, view.rows_N, self.coder)
        local = local_pairs(
            seen,
            owners_of(view.rows_N, seen.slots.ids_TK.device),
            base=self.layout.base(view.rank),
            shape_NS=(len(view.rows_N), self.layout.slots_per_rank[view.rank]),
            backend=self.backend,
        )
        return Dispatched(
            rows=local.rows,
            counts=local.counts,
            received_NS=local.received_NS,
            claimed_NS=local.claimed_NS,
            carry=AllGatherCarry(local.index_AK, seen.weights_AK, view.rows_N),
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
