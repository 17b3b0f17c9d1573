"""Exchange by fused MC2: dispatch, experts and combine in one call.

Axes    T tokens   K experts per token   N ranks   P slots of all ranks   S local slots
        M rows   Z width   H waves

Slots are computed in waves. While the experts of one wave work, the rows of the next are on
their way here and the results of the last one on their way back. What a rank can receive is
fixed beforehand, from numbers that are the same on every rank; the counts of all ranks are known
to all before any row leaves, so that a step that does not fit is found out by every rank alike,
with nothing sent and nothing dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.rows import AS_IS, RowCoder, Rows, pick_rows
from moe_runtime.contracts.stages import Combined, Computed, Dispatched, FusedMc2Carry, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.torch_calls import split_rows, to_ints
from moe_runtime.exchange.limits import UNLIMITED, Limits, check_ids
from moe_runtime.exchange.parcels import pack
from moe_runtime.exchange.peers import Peers, Pending
from moe_runtime.exchange.places import SortedPairs, claims, inverse, sort_pairs
from moe_runtime.placement.maps import SlotLayout

__all__ = ["ComputeWave", "FusedMc2Exchange", "Overflow"]

ComputeWave = Callable[[Dispatched[FusedMc2Carry]], Computed[FusedMc2Carry]]
_WAVES = 2


@dataclass(frozen=True, slots=True)
class Overflow:
    """The step does not fit what some rank can receive. Every rank gets the same."""

    demand_N: tuple[int, ...]
    capacity: int

    @property
    def rows(self) -> int:
        """Rows of all ranks that find no place."""
        return sum(self.rows_at(rank) for rank in range(len(self.demand_N)))

    def rows_at(self, rank: int) -> int:
        """Return the rows that find no place at one rank."""
        return max(0, self.demand_N[rank] - self.capacity)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Who sends what in each wave, worked out before the first row leaves."""

    pairs: SortedPairs
    leaving_H: tuple[Tensor, ...]
    """Sorted pairs of each wave."""
    sent_HN: tuple[tuple[int, ...], ...]
    received_HNS: tuple[Tensor, ...]
    claimed_HNS: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class FusedMc2Exchange:
    """One rank's part. Meets no `Exchange`: its stages cannot be called one by one."""

    peers: Peers
    layout: SlotLayout
    backend: Backend
    capacity: int
    """Rows that a rank can receive in one call; the same on every rank."""
    coder: RowCoder = AS_IS
    limits: Limits = UNLIMITED

    def run(self, placed: Placed, view: StepView, compute: ComputeWave) -> Combined | Overflow:
        """Compute all tokens; or return Overflow on every rank, before anything is sent.

        compute    called once for each wave, with the rows of its slots and no others
        """
        check_ids(
            placed.slots,
            num_slots=self.layout.num_slots,
            limits=self.limits,
            rows=max(view.rows_N),
        )
        pairs = sort_pairs(placed.slots, self.layout.num_slots, self.backend)
        told = self._tell(placed, pairs)
        rows = self.coder.encode(placed.x_TZ)
        told_NP2 = told.wait().view(self.peers.size, self.layout.num_slots, 2)
        overflow = self._overflow(told_NP2[:, :, 0])
        if overflow is not None:
            return overflow
        plan = self._plan(pairs, told_NP2)
        back_MZ = self._waves(plan, rows, compute)
        order = torch.cat(plan.leaving_H)
        index_TK = _through(inverse(order), pairs.index_TK)
        return Combined(self.backend.weighted_sum(back_MZ, index_TK, placed.weights_TK))

    def _tell(self, placed: Placed, pairs: SortedPairs) -> Pending:
        """Begin to tell all ranks how many rows go to each slot, and for which expert."""
        claimed_P = claims(
            placed.slots.ids_TK.reshape(-1),
            placed.experts.ids_TK.reshape(-1),
            self.layout.num_slots,
        )
        told = torch.stack((pairs.counts_P, claimed_P), dim=1)
        every = [self.layout.num_slots] * self.peers.size
        return self.peers.start_all_to_all(
            told.repeat(self.peers.size, 1), every, every, what="how many rows go to each slot"
        )

    def _overflow(self, counts_NP: Tensor) -> Overflow | None:
        by_rank = split_rows(counts_NP.sum(dim=0), self.layout.slots_per_rank)
        demand_N = tuple(int(piece.sum()) for piece in by_rank)
        return Overflow(demand_N, self.capacity) if max(demand_N) > self.capacity else None

    def _plan(self, pairs: SortedPairs, told_NP2: Tensor) -> _Plan:
        owners_P = torch.repeat_interleave(torch.tensor(self.layout.slots_per_rank))
        waves_P = torch.cat([_wave_of(size) for size in self.layout.slots_per_rank])
        slots_M = torch.repeat_interleave(torch.arange(waves_P.numel()), pairs.counts_P)
        low, high = self.layout.bounds()[self.peers.rank : self.peers.rank + 2]
        own_NS2, waves_S = told_NP2[:, low:high], waves_P[low:high]
        in_waves = [waves_S == wave for wave in range(_WAVES)]
        leaving = [torch.nonzero(waves_P[slots_M] == wave).reshape(-1) for wave in range(_WAVES)]
        return _Plan(
            pairs=pairs,
            leaving_H=tuple(leaving),
            sent_HN=tuple(
                tuple(to_ints(torch.bincount(owners_P[slots_M[m]], minlength=self.peers.size)))
                for m in leaving
            ),
            received_HNS=tuple(torch.where(here, own_NS2[:, :, 0], 0) for here in in_waves),
            claimed_HNS=tuple(torch.where(here, own_NS2[:, :, 1], -1) for here in in_waves),
        )

    def _waves(self, plan: _Plan, rows: Rows, compute: ComputeWave) -> Tensor:
        """Return this rank's rows, computed, wave after wave in the order in which they left."""
        flying = self._start(plan, rows, 0)
        back: list[Pending] = []
        for wave in range(_WAVES):
            following = self._start(plan, rows, wave + 1) if wave + 1 < _WAVES else None
            arrived = flying.wait()
            received_NS = plan.received_HNS[wave]
            done = compute(self._sorted(plan, wave, rows, arrived))
            returning = done.rows_MZ[inverse(done.carry.arrival_M)]
            received_N = to_ints(received_NS.sum(dim=1))
            back.append(
                self.peers.start_all_to_all(
                    returning, received_N, plan.sent_HN[wave], what=f"results of wave {wave}"
                )
            )
            if following is not None:
                flying = following
        return torch.cat([pending.wait() for pending in back])

    def _start(self, plan: _Plan, rows: Rows, wave: int) -> Pending:
        tokens = plan.pairs.tokens_M[plan.leaving_H[wave]]
        packed, _ = pack(pick_rows(rows, tokens).parts())
        received_N = to_ints(plan.received_HNS[wave].sum(dim=1))
        return self.peers.start_all_to_all(
            packed, plan.sent_HN[wave], received_N, what=f"token rows of wave {wave}"
        )

    def _sorted(
        self, plan: _Plan, wave: int, rows: Rows, arrived: Tensor
    ) -> Dispatched[FusedMc2Carry]:
        """Sort what a wave has brought by local slot."""
        received_NS = plan.received_HNS[wave]
        num_ranks, num_slots = received_NS.shape
        slots_M = torch.repeat_interleave(
            torch.arange(num_slots).repeat(num_ranks), received_NS.reshape(-1)
        )
        arrival_M = self.backend.order_by_group(slots_M)
        _, parcel = pack(rows.parts())
        return Dispatched(
            rows=pick_rows(rows.of(parcel.unpack(arrived)), arrival_M),
            counts=self.backend.count_groups(slots_M, num_slots),
            received_NS=received_NS,
            claimed_NS=plan.claimed_HNS[wave],
            carry=FusedMc2Carry(arrival_M),
        )


def _wave_of(num_slots: int) -> Tensor:
    """Return int64 [S]: the wave in which each slot of one rank is computed."""
    return torch.arange(num_slots) * _WAVES // max(num_slots, 1)


def _through(places_M: Tensor, index_TK: Tensor) -> Tensor:
    """Return where the pairs stand after another sorting, -1 for one that was not sent."""
    return torch.cat((places_M, places_M.new_full((1,), -1)))[index_TK]
