"""Exchange by AllGather for tokens that all ranks of a team have: partial sums, added by all.

Axes    A tokens of all teams   N ranks   G teams   K experts per token   Z width
        S local slots   M rows at local slots

Ranks with the same place in their teams gather the tokens of all teams; inside a team nothing
is gathered, since all of it has them. Every rank computes the pairs of its own slots. Shares are
added by every rank of the team that has the tokens, in order of rank, so that all get the same
bits. A pair counts once only if all ranks of a team send it to the same slot: their dispatch
tables must be equal, which the step's announcement makes sure of.
"""

from dataclasses import dataclass

import torch

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.rows import AS_IS, RowCoder
from moe_runtime.contracts.stages import AllGatherSumCarry, Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.exchange.gathered import gather_placed, local_pairs, owners_of
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.team import TeamPeers
from moe_runtime.placement.maps import SlotLayout

__all__ = ["AllGatherSumExchange"]


@dataclass(frozen=True, slots=True)
class AllGatherSumExchange:
    """Meets `Exchange[AllGatherSumCarry]`; the view is a `led` one."""

    peers: Peers
    layout: SlotLayout
    backend: Backend
    team: int
    coder: RowCoder = AS_IS

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[AllGatherSumCarry]:
        """Gather the tokens of all teams and sort the pairs of this rank's slots by slot."""
        rows_G = view.rows_N[:: self.team]
        own = rows_G[view.rank // self.team]
        if placed.x_TZ.shape[0] != own:
            raise ShapeMismatch("tokens of a team", got=placed.x_TZ.shape, expected=f"({own}, Z)")
        place = view.rank % self.team
        column = TeamPeers(self.peers, tuple(range(place, self.peers.size, self.team)))
        seen = gather_placed(column, placed, rows_G, self.coder)
        local = local_pairs(
            seen,
            owners_of(rows_G, seen.slots.ids_TK.device) * self.team,
            base=self.layout.base(view.rank),
            shape_NS=(len(view.rows_N), self.layout.slots_per_rank[view.rank]),
            backend=self.backend,
        )
        return Dispatched(
            rows=local.rows,
            counts=local.counts,
            received_NS=local.received_NS,
            claimed_NS=local.claimed_NS,
            carry=AllGatherSumCarry(local.index_AK, seen.weights_AK, rows_G),
        )

    def combine(self, computed: Computed[AllGatherSumCarry]) -> Combined:
        """Sum this rank's share of every token, and add the shares at all ranks that have it."""
        carry = computed.carry
        partial_AZ = self.backend.weighted_sum(computed.rows_MZ, carry.index_AK, carry.weights_AK)
        by_team = split_rows(partial_AZ, carry.rows_G)
        ranks = range(self.peers.size)
        num_own = carry.rows_G[self.peers.rank // self.team]
        shares = self.peers.all_to_all(
            torch.cat([by_team[rank // self.team] for rank in ranks]),
            sent=[carry.rows_G[rank // self.team] for rank in ranks],
            received=[num_own] * self.peers.size,
        )
        return Combined(shares.view(self.peers.size, num_own, shares.shape[1]).sum(dim=0))
