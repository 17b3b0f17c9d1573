"""The stages of one MoE layer, in order.

Axes    T rows of the batch   D model width   Z width of the routed part   N ranks
        S local slots   X experts to choose from: E routed ones, then any zero experts

    prepare, route, enter, remap, dispatch, compute, combine, leave, finalize

Which exchange is around the experts is the step's affair, not the layer's.

Real steps and dummy steps take the same path and issue the same collectives.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.capture.step import Recorder
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.contracts.stages import (
    Placed,
    Prepared,
    Routed,
    RoutedBesideZero,
)
from moe_runtime.contracts.step import StepKind, StepView
from moe_runtime.contracts.timeline import Moment, Timeline
from moe_runtime.contracts.tokens import NoTokenIds, TokenIds
from moe_runtime.exchange.active import adapted
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.prepare import finalize, finalize_piece, prepare, prepare_piece
from moe_runtime.experts.shared import compute_shared
from moe_runtime.layer.computing import RankExperts
from moe_runtime.layer.given import LayerAdapters, LayerInput, LayerMaths, RankState
from moe_runtime.layer.mixing import shared_weights, with_shared
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.layer.passage import Passage
from moe_runtime.placement.maps import remap
from moe_runtime.routing.applying import apply, force_balance
from moe_runtime.routing.router import Router, RouterInput

__all__ = ["MoELayer", "PieceOfTeam", "Way", "WholeBatch"]


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
        placed = self._place(routed, prepared)
        if isinstance(given.adapters, LayerAdapters):
            placed = adapted(placed, given.adapters.ids_T[prepared.kept_T])
        experts = RankExperts(
            self.index, self.maths, self.state, way.view, timeline, given.adapters
        )
        y_TZ = self._exchange(placed, experts, way)
        if isinstance(applied, RoutedBesideZero):
            y_TZ = y_TZ + routed.x_TZ * applied.identity_T[:, None]
        y_TD = self.weights.path.leave(y_TZ)
        return self._beside(prepared.x_TD, y_TD, timeline) if self.weights.shared else y_TD

    def _place(self, routed: Routed, prepared: Prepared) -> Placed:
        """Give each pair a slot, those of shared experts in slots among them."""
        tables, gates = self.state.tables, self.weights.in_slots
        placed = remap(routed, tables.table(self.index), layer=self.index)
        if not gates:
            return placed
        weights_TM = shared_weights(prepared.x_TD, gates)
        slots_M, first = tables.shared(self.index), self.maths.routing.num_experts
        return with_shared(placed, weights_TM, slots_M=slots_M, first=first)

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

    def _exchange(self, placed: Placed, experts: RankExperts, way: Way) -> Tensor:
        """Bring tokens to their experts and back, and count what was sent and received."""
        view = way.view
        experts.timeline.mark(Moment.DISPATCH)
        passed = way.passage.run(placed, view, experts)
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
