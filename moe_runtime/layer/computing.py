"""The experts of one rank, in one layer and one step.

Axes    N ranks   S local slots
"""

from typing import TypeVar

import numpy as np
from torch import Tensor

from moe_runtime.contracts.adapters import NoAdapters
from moe_runtime.contracts.errors import EmptySlotReached, StaleTable
from moe_runtime.contracts.ids import UNCLAIMED
from moe_runtime.contracts.stages import Computed, Dispatched, FusedMc2Carry
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.timeline import Moment, Timeline
from moe_runtime.contracts.torch_calls import to_array
from moe_runtime.contracts.weights import ReadableWeights
from moe_runtime.experts.lora import Adapted, Unadapted, adapters_of_rows
from moe_runtime.experts.mlp import compute_grouped
from moe_runtime.formats.fusing import by_fused_scales, plain_of
from moe_runtime.layer.given import LayerAdapters, LayerMaths, RankState
from moe_runtime.layer.passage import Lent
from moe_runtime.placement.slots import EMPTY

__all__ = ["RankExperts"]

C = TypeVar("C")


class RankExperts:
    """The experts of one layer in one step, and what they saw of it."""

    def __init__(
        self,
        layer: int,
        maths: LayerMaths,
        state: RankState,
        view: StepView,
        timeline: Timeline,
        adapters: NoAdapters | LayerAdapters,
    ) -> None:
        self._layer, self._maths, self._slots = layer, maths, state.slots
        self._view, self._adapters = view, adapters
        self.timeline = timeline
        self.received: list[Tensor] = []
        """[N, S] of each call."""
        self.seconds = 0.0

    def __call__(self, dispatched: Dispatched[C]) -> Computed[C]:
        """Run every row through the expert of its slot."""
        maths = self._maths
        self._refuse_wrong_slots(dispatched.claimed_NS, rank=self._view.rank)
        self.received.append(dispatched.received_NS)
        started = maths.clock()
        computed = compute_grouped(
            dispatched,
            self._weights(dispatched),
            activation=maths.activation,
            backend=maths.backend,
            before_down=lambda: self.timeline.mark(Moment.DOWN),
            lora=self._lora(dispatched),
        )
        self.timeline.mark(Moment.COMBINE)
        self.seconds += maths.clock() - started
        return computed

    def lend(self, received_NS: Tensor, claimed_NS: Tensor) -> Lent:
        """Give the experts to an operator that computes all rows by itself.

        Raises EmptySlotReached or StaleTable unless each slot holds whom its rows are for.
        """
        self._refuse_wrong_slots(claimed_NS, rank=self._view.rank)
        self.received.append(received_NS)
        # The operator tells of nothing on its way, so work beside it may begin with it.
        for moment in (Moment.DOWN, Moment.COMBINE):
            self.timeline.mark(moment)
        return Lent(self._slots.weights(self._layer), self._maths.activation)

    def _weights(self, dispatched: Dispatched[C]) -> ReadableWeights:
        """Return the experts as the exchange that brought the rows has them computed."""
        weights = self._slots.weights(self._layer)
        is_fused = isinstance(dispatched.carry, FusedMc2Carry)
        return by_fused_scales(weights) if is_fused else plain_of(weights)

    def _lora(self, dispatched: Dispatched[C]) -> Unadapted | Adapted:
        """Return what adapters add to the rows that arrived, also those of other ranks' tokens."""
        if isinstance(self._adapters, NoAdapters):
            return Unadapted()
        slots, index = self._slots, self._layer
        return Adapted(
            self._adapters.experts,
            slots.held()[index],
            adapters_of_rows(dispatched.rows, slots.weights(index).rows),
            dispatched.counts,
            self._maths.backend,
        )

    def _refuse_wrong_slots(self, told_NS: Tensor, *, rank: int) -> None:
        """Raise EmptySlotReached or StaleTable unless each slot holds whom its rows are for."""
        index = self._layer
        held_S = self._slots.held()[index]
        claimed_NS = to_array(told_NS)
        wrong_NS = (claimed_NS != held_S) & (claimed_NS != UNCLAIMED)
        if not wrong_NS.any():
            return
        empty_S = wrong_NS.any(axis=0) & (held_S == EMPTY)
        if empty_S.any():
            raise EmptySlotReached(
                layer=index, rank=rank, local_slots=np.flatnonzero(empty_S).tolist()
            )
        raise StaleTable(
            layer=index,
            rank=rank,
            wrong=[
                (source, slot, int(claimed_NS[source, slot]), int(held_S[slot]))
                for source, slot in np.argwhere(wrong_NS).tolist()
            ],
        )
