"""The stages of one MoE layer, in order.

Axes    T rows of the batch   D model width   E experts   N ranks   S local slots

    prepare, route, enter, remap, dispatch, compute, combine, leave, finalize

Real steps and dummy steps take the same path and issue the same collectives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.errors import EmptySlotReached
from moe_runtime.contracts.stages import Dispatched, Prepared, Routed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.torch_calls import from_array
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.exchange.prepare import finalize, prepare
from moe_runtime.exchange.protocol import Exchange
from moe_runtime.experts.activations import Activation
from moe_runtime.experts.mlp import compute_dense, compute_grouped
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.placement.counters import LoadCounters
from moe_runtime.placement.maps import DispatchTables, remap
from moe_runtime.placement.slots import EMPTY, ExpertSlots
from moe_runtime.routing.selector import SelectorSettings, select

__all__ = ["LayerInput", "LayerMaths", "MoELayer", "RankState"]

C = TypeVar("C")


@dataclass(frozen=True, slots=True, eq=False)
class LayerInput:
    """What a layer is given."""

    x_TD: Tensor
    logits_TE: Tensor
    """The router's logits: from the layer's own gate, or from outside."""
    real_T: Tensor
    """bool [T], false for padding rows."""


@dataclass(frozen=True, slots=True)
class LayerMaths:
    """How a layer computes."""

    selector: SelectorSettings
    activation: Activation
    backend: Backend
    clock: Callable[[], float]
    """Seconds, for the time spent in experts."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What changes between steps on one rank: the only state there is."""

    slots: ExpertSlots[DenseWeights]
    tables: DispatchTables
    counters: LoadCounters


@dataclass(frozen=True, slots=True, eq=False)
class MoELayer(Generic[C]):
    """One layer on one rank. It holds nothing of its own between calls."""

    index: int
    weights: LayerWeights
    maths: LayerMaths
    exchange: Exchange[C]
    state: RankState

    def gate(self, x_TD: Tensor) -> Tensor:
        """Return the router's logits [T, E] from the full hidden state."""
        return x_TD @ self.weights.gate_ED.t()

    def forward(self, given: LayerInput, view: StepView) -> Tensor:
        """Return [T, D], zeros in padding rows; the caller adds the residual."""
        prepared = prepare(given.x_TD, given.real_T)
        routed = self._route(prepared, given.logits_TE)
        placed = remap(routed, self.state.tables.table(self.index), layer=self.index)
        dispatched = self.exchange.dispatch(placed, view)
        self._refuse_empty_slots(dispatched, rank=view.rank)
        self.state.counters.record_layer(
            self.index, view, sent=routed.experts, received_NS=dispatched.received_NS
        )
        started = self.maths.clock()
        computed = compute_grouped(
            dispatched,
            self.state.slots.weights(self.index),
            activation=self.maths.activation,
            backend=self.maths.backend,
        )
        self.state.counters.record_expert_time(view, seconds=self.maths.clock() - started)
        combined = self.exchange.combine(computed)
        y_TD = self.weights.path.leave(combined.x_TZ)
        for shared in self.weights.shared:
            y_TD = y_TD + compute_dense(
                prepared.x_TD, shared.w13_FD, shared.w2_DI, self.maths.activation
            )
        return finalize(y_TD, prepared)

    def _route(self, prepared: Prepared, logits_TE: Tensor) -> Routed:
        choice = select(
            logits_TE[prepared.kept_T],
            self.maths.selector,
            correction_E=self.weights.correction_E,
            backend=self.maths.backend,
        )
        x_TZ = self.weights.path.enter(prepared.x_TD)
        return Routed(x_TZ, choice.experts, choice.weights_TK.to(x_TZ.dtype))

    def _refuse_empty_slots(self, dispatched: Dispatched[C], *, rank: int) -> None:
        empty_S = from_array(self.state.slots.held()[self.index] == EMPTY)
        reached = empty_S & (dispatched.counts.counts_S > 0)
        if reached.any():
            raise EmptySlotReached(
                layer=self.index,
                rank=rank,
                local_slots=np.flatnonzero(reached.numpy()).tolist(),
            )
