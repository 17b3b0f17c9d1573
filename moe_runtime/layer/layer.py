"""The stages of one MoE layer, in order.

Axes    T rows of the batch   D model width   Z width of the routed part   N ranks
        S local slots   X experts to choose from: E routed ones, then any zero experts

    prepare, route, enter, remap, dispatch, compute, combine, leave, finalize

Real steps and dummy steps take the same path and issue the same collectives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.errors import EmptySlotReached, StaleTable
from moe_runtime.contracts.stages import Dispatched, Prepared, Routed, RoutedBesideZero
from moe_runtime.contracts.step import StepKind, StepView
from moe_runtime.contracts.tokens import NoTokenIds, TokenIds
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.exchange.prepare import finalize, prepare
from moe_runtime.exchange.protocol import Exchange
from moe_runtime.experts.activations import Activation
from moe_runtime.experts.mlp import compute_dense, compute_grouped
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.placement.counters import LoadCounters
from moe_runtime.placement.maps import DispatchTables, remap
from moe_runtime.placement.slots import EMPTY, ExpertSlots
from moe_runtime.routing.applying import apply, force_balance
from moe_runtime.routing.kinds import Routing
from moe_runtime.routing.router import Router, RouterInput

__all__ = ["LayerInput", "LayerMaths", "MoELayer", "RankState"]

C = TypeVar("C")


@dataclass(frozen=True, slots=True, eq=False)
class LayerInput:
    """What a layer is given."""

    x_TD: Tensor
    logits_TX: Tensor
    """The router's logits: from the layer's own gate, or from outside."""
    real_T: Tensor
    """bool [T], false for padding rows."""
    token_ids: NoTokenIds | TokenIds
    """Of all rows of the batch, padding included."""


@dataclass(frozen=True, slots=True)
class LayerMaths:
    """How a layer computes."""

    routing: Routing
    activation: Activation
    backend: Backend
    clock: Callable[[], float]
    """Seconds, for the time spent in experts."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What changes between steps on one rank: the only state there is."""

    slots: ExpertSlots[ExpertWeights]
    tables: DispatchTables
    counters: LoadCounters


@dataclass(frozen=True, slots=True, eq=False)
class MoELayer(Generic[C]):
    """One layer on one rank. It holds nothing of its own between calls."""

    index: int
    weights: LayerWeights
    router: Router
    maths: LayerMaths
    exchange: Exchange[C]
    state: RankState

    def gate(self, x_TD: Tensor) -> Tensor:
        """Return the router's logits [T, X] from the full hidden state."""
        return x_TD @ self.weights.gate_XD.t()

    def forward(self, given: LayerInput, view: StepView) -> Tensor:
        """Return [T, D], zeros in padding rows; the caller adds the residual."""
        prepared = prepare(given.x_TD, given.real_T)
        applied = self._route(prepared, given, view)
        routed = applied.routed if isinstance(applied, RoutedBesideZero) else applied
        placed = remap(routed, self.state.tables.table(self.index), layer=self.index)
        dispatched = self.exchange.dispatch(placed, view)
        self._refuse_wrong_slots(dispatched, rank=view.rank)
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
        y_TZ = combined.x_TZ
        if isinstance(applied, RoutedBesideZero):
            y_TZ = y_TZ + routed.x_TZ * applied.identity_T[:, None]
        y_TD = self.weights.path.leave(y_TZ)
        for shared in self.weights.shared:
            y_TD = y_TD + compute_dense(
                prepared.x_TD, shared.w13_FD, shared.w2_DI, self.maths.activation
            )
        return finalize(y_TD, prepared)

    def _route(
        self, prepared: Prepared, given: LayerInput, view: StepView
    ) -> Routed | RoutedBesideZero:
        kept_T = prepared.kept_T
        match given.token_ids:
            case NoTokenIds():
                token_ids = given.token_ids
            case TokenIds(ids_T):
                token_ids = TokenIds(ids_T[kept_T])
        routing = self.maths.routing
        choice = self.router.choose(
            RouterInput(prepared.x_TD, given.logits_TX[kept_T], token_ids), self.maths.backend
        )
        if view.own.kind is StepKind.PROFILE:
            first_row = sum(view.rows_N[: view.rank])
            choice = force_balance(choice, num_experts=routing.num_experts, first_row=first_row)
        return apply(routing, choice, self.weights.path.enter(prepared.x_TD))

    def _refuse_wrong_slots(self, dispatched: Dispatched[C], *, rank: int) -> None:
        """Raise EmptySlotReached or StaleTable unless each slot holds whom its rows are for."""
        held_S = self.state.slots.held()[self.index]
        claimed_NS = dispatched.claimed_NS.numpy()
        wrong_NS = (claimed_NS != held_S) & (claimed_NS >= 0)
        if not wrong_NS.any():
            return
        empty_S = wrong_NS.any(axis=0) & (held_S == EMPTY)
        if empty_S.any():
            raise EmptySlotReached(
                layer=self.index, rank=rank, local_slots=np.flatnonzero(empty_S).tolist()
            )
        raise StaleTable(
            layer=self.index,
            rank=rank,
            wrong=[
                (source, slot, int(claimed_NS[source, slot]), int(held_S[slot]))
                for source, slot in np.argwhere(wrong_NS).tolist()
            ],
        )
