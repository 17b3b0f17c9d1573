"""The stages of one MoE layer, in order.

Axes    T rows of the batch   D model width   Z width of the routed part   N ranks
        S local slots   X experts to choose from: E routed ones, then any zero experts

    prepare, route, enter, remap, dispatch, compute, combine, leave, finalize

Which exchange is around the experts is the step's affair, not the layer's.

Real steps and dummy steps take the same path and issue the same collectives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.capture.step import Recorder
from moe_runtime.contracts.adapters import NO_ADAPTERS, ExpertAdapters, NoAdapters
from moe_runtime.contracts.errors import EmptySlotReached, StaleTable
from moe_runtime.contracts.ids import UNCLAIMED, LogicalIds
from moe_runtime.contracts.stages import (
    Computed,
    Dispatched,
    Placed,
    Prepared,
    Routed,
    RoutedBesideZero,
)
from moe_runtime.contracts.step import StepKind, StepView
from moe_runtime.contracts.timeline import InOrder, Moment, Timeline
from moe_runtime.contracts.tokens import NoTokenIds, TokenIds
from moe_runtime.contracts.torch_calls import to_array
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.exchange.active import adapted
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.prepare import finalize, finalize_piece, prepare, prepare_piece
from moe_runtime.experts.activations import Activation
from moe_runtime.experts.lora import Adapted, Unadapted, adapters_of_rows
from moe_runtime.experts.mlp import compute_grouped
from moe_runtime.experts.shared import compute_shared
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.layer.passage import Passage
from moe_runtime.placement.counters import LoadCounters
from moe_runtime.placement.maps import DispatchTables, remap
from moe_runtime.placement.slots import EMPTY, ExpertSlots
from moe_runtime.routing.applying import apply, force_balance
from moe_runtime.routing.kinds import Routing
from moe_runtime.routing.router import Router, RouterInput

__all__ = [
    "LayerAdapters",
    "LayerInput",
    "LayerMaths",
    "MoELayer",
    "PieceOfTeam",
    "RankState",
    "Way",
    "WholeBatch",
]

C = TypeVar("C")


@dataclass(frozen=True, slots=True, eq=False)
class LayerAdapters:
    """The adapters of one layer, and which of them each row of the batch uses."""

    ids_T: Tensor
    experts: ExpertAdapters


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
    adapters: NoAdapters | LayerAdapters = NO_ADAPTERS


@dataclass(frozen=True, slots=True)
class LayerMaths:
    """How a layer computes."""

    routing: Routing
    activation: Activation
    backend: Backend
    clock: Callable[[], float]
    """Seconds, for the time spent in experts."""
    timeline: Callable[[], Timeline] = InOrder
    """Makes the order of one layer's work: a device with streams has its own."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What changes between steps on one rank: the only state there is."""

    slots: ExpertSlots[ExpertWeights]
    tables: DispatchTables
    counters: LoadCounters


@dataclass(frozen=True, slots=True)
class WholeBatch:
    """This rank works on all tokens of its batch."""


@dataclass(frozen=True, slots=True)
class PieceOfTeam:
    """This rank works on its piece of a batch that all ranks of its team have."""

    team: Peers


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How one step goes through all layers, and who wants to know what the routers chose."""

    view: StepView
    passage: Passage
    part: WholeBatch | PieceOfTeam
    recorder: Recorder


@dataclass(frozen=True, slots=True, eq=False)
class MoELayer:
    """One layer on one rank. It holds nothing of its own between calls."""

    index: int
    weights: LayerWeights
    router: Router
    maths: LayerMaths
    state: RankState

    def gate(self, x_TD: Tensor) -> Tensor:
        """Return the router's logits [T, X] from the full hidden state."""
        return x_TD @ self.weights.gate_XD.t()

    def forward(self, given: LayerInput, way: Way) -> Tensor:
        """Return [T, D], zeros in padding rows; the caller adds the residual."""
        match way.part:
            case WholeBatch():
                prepared = prepare(given.x_TD, given.real_T)
                return finalize(self._tokens(prepared, given, way), prepared)
            case PieceOfTeam(team):
                piece = prepare_piece(given.x_TD, given.real_T, place=team.rank, team=team.size)
                return finalize_piece(self._tokens(piece.own, given, way), piece, team)

    def _tokens(self, prepared: Prepared, given: LayerInput, way: Way) -> Tensor:
        """Return [T, D] for the tokens that were kept."""
        timeline = self.maths.timeline()
        timeline.mark(Moment.ROUTED)
        applied = self._route(prepared, given, way)
        routed = applied.routed if isinstance(applied, RoutedBesideZero) else applied
        placed = remap(routed, self.state.tables.table(self.index), layer=self.index)
        if isinstance(given.adapters, LayerAdapters):
            placed = adapted(placed, given.adapters.ids_T[prepared.kept_T])
        y_TZ = self._exchange(placed, _Experts(self, way.view, timeline, given.adapters), way)
        if isinstance(applied, RoutedBesideZero):
            y_TZ = y_TZ + routed.x_TZ * applied.identity_T[:, None]
        y_TD = self.weights.path.leave(y_TZ)
        return self._beside(prepared.x_TD, y_TD, timeline) if self.weights.shared else y_TD

    def _beside(self, x_TD: Tensor, y_TD: Tensor, timeline: Timeline) -> Tensor:
        """Add the shared experts, which were told of after the routed part and may overtake it."""
        maths = self.maths
        with timeline.beside():
            shared = [
                compute_shared(
                    x_TD,
                    expert,
                    activation=maths.activation,
                    backend=maths.backend,
                    timeline=timeline,
                )
                for expert in self.weights.shared
            ]
        timeline.join()
        for one_TD in shared:
            y_TD = y_TD + one_TD
        return y_TD

    def _exchange(self, placed: Placed, experts: "_Experts", way: Way) -> Tensor:
        """Bring tokens to their experts and back, and count what was sent and received."""
        view = way.view
        experts.timeline.mark(Moment.DISPATCH)
        passed = way.passage.run(placed, view, experts.run)
        counters = self.state.counters
        counters.record_layer(
            self.index,
            view,
            # Of tokens that a whole team has, the first rank counts all and the others none.
            sent=LogicalIds(placed.experts.ids_TK[: view.own_rows]),
            received_NS=torch.stack(experts.received).sum(dim=0),
        )
        counters.record_overflow(view, rows=passed.overflow_rows)
        counters.record_expert_time(view, seconds=experts.seconds)
        return passed.x_TZ

    def _route(self, prepared: Prepared, given: LayerInput, way: Way) -> Routed | RoutedBesideZero:
        kept_T = prepared.kept_T
        match given.token_ids:
            case NoTokenIds():
                token_ids = given.token_ids
            case TokenIds(ids_T):
                token_ids = TokenIds(ids_T[kept_T])
        routing, view = self.maths.routing, way.view
        choice = self.router.choose(
            RouterInput(prepared.x_TD, given.logits_TX[kept_T], token_ids), self.maths.backend
        )
        way.recorder.record(self.index, choice.experts)
        if view.own.kind is StepKind.PROFILE:
            choice = force_balance(
                choice, num_experts=routing.num_experts, first_row=view.first_row
            )
        return apply(routing, choice, self.weights.path.enter(prepared.x_TD))


class _Experts:
    """The experts of one layer in one step, and what they saw of it."""

    def __init__(
        self,
        layer: MoELayer,
        view: StepView,
        timeline: Timeline,
        adapters: NoAdapters | LayerAdapters,
    ) -> None:
        self._layer = layer
        self._view = view
        self.timeline = timeline
        self._adapters = adapters
        self.received: list[Tensor] = []
        """[N, S] of each call."""
        self.seconds = 0.0

    def run(self, dispatched: Dispatched[C]) -> Computed[C]:
        """Run every row through the expert of its slot."""
        layer = self._layer
        self._refuse_wrong_slots(dispatched, rank=self._view.rank)
        self.received.append(dispatched.received_NS)
        started = layer.maths.clock()
        computed = compute_grouped(
            dispatched,
            layer.state.slots.weights(layer.index),
            activation=layer.maths.activation,
            backend=layer.maths.backend,
            before_down=lambda: self.timeline.mark(Moment.DOWN),
            lora=self._lora(dispatched),
        )
        self.timeline.mark(Moment.COMBINE)
        self.seconds += layer.maths.clock() - started
        return computed

    def _lora(self, dispatched: Dispatched[C]) -> Unadapted | Adapted:
        """Return what adapters add to the rows that arrived, also those of other ranks' tokens."""
        if isinstance(self._adapters, NoAdapters):
            return Unadapted()
        slots, index = self._layer.state.slots, self._layer.index
        return Adapted(
            self._adapters.experts,
            slots.held()[index],
            adapters_of_rows(dispatched.rows, slots.weights(index).rows),
            dispatched.counts,
        )

    def _refuse_wrong_slots(self, dispatched: Dispatched[C], *, rank: int) -> None:
        """Raise EmptySlotReached or StaleTable unless each slot holds whom its rows are for."""
        index = self._layer.index
        held_S = self._layer.state.slots.held()[index]
        claimed_NS = to_array(dispatched.claimed_NS)
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
