"""One layer of a rank, for torch.export and torch.compile: no size in it depends on a value.

Axes    T rows of the batch, any number   A rows of all ranks   N ranks   D model width
        K experts per token   H phases   E routed experts   S local slots
        M rows sorted by slot; of shared experts: those that sit in slots

The dispatch table, whom slots hold, and the counters are the rank's own tensors, registered as
buffers: a placement that changes in place, between two runs, is followed by the graph as it is.
Padding rows keep their place and send nothing. A graph cannot refuse in the middle, so what the
layer would refuse is counted in a buffer, and `refuse_faults` raises for it after the run, on the
rank that found it.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.errors import StaleTable, UnplacedExpert, Unsupported
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.ids import NOT_SENT, LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import PlainRows
from moe_runtime.contracts.stages import Dispatched, Placed, RoutedBesideZero
from moe_runtime.contracts.timeline import InOrder, Moment
from moe_runtime.contracts.tokens import NO_TOKEN_IDS
from moe_runtime.contracts.torch_calls import to_ints
from moe_runtime.contracts.weights import BiasedWeights
from moe_runtime.exchange.places import inverse
from moe_runtime.exchange.traced import TracedRanks
from moe_runtime.experts.mlp import compute_grouped
from moe_runtime.experts.shared import compute_shared
from moe_runtime.formats.fusing import plain_of
from moe_runtime.layer.layer import MoELayer
from moe_runtime.layer.mixing import shared_weights, with_shared
from moe_runtime.routing.applying import apply
from moe_runtime.routing.router import RouterInput, ScoreRouter

__all__ = ["TracedLayer"]

_UNPLACED, _STALE = range(2)


class TracedLayer(nn.Module):
    """Meets what a tracer asks of a module. Raises Unsupported for what it cannot trace."""

    table_EJ: Tensor
    held_S: Tensor
    received_HS: Tensor
    sent_HE: Tensor
    zero_H: Tensor
    shared_M: Tensor
    shared_HM: Tensor
    faults_2: Tensor

    def __init__(
        self, layer: MoELayer, backend: Backend, *, ranks: TracedRanks, first_slot: int
    ) -> None:
        super().__init__()
        _refuse_untraceable(layer)
        self._layer, self._backend = layer, backend
        self._ranks, self._first_slot = ranks, first_slot
        state, index = layer.state, layer.index
        counts = state.counters.of_layer(index)
        self.register_buffer("table_EJ", state.tables.table(index))
        self.register_buffer("held_S", state.slots.held_tensor(index))
        self.register_buffer("shared_M", state.tables.shared(index))
        self.register_buffer("received_HS", counts.received_HS)
        self.register_buffer("sent_HE", counts.sent_HE)
        self.register_buffer("shared_HM", counts.shared_HM)
        self.register_buffer("zero_H", counts.zero_H)
        self.register_buffer("faults_2", torch.zeros(2, dtype=torch.int64))

    def forward(self, x_TD: Tensor, real_T: Tensor, counted_H: Tensor) -> Tensor:
        """Return [T, D], zeros in padding rows.

        real_T       bool [T], false for padding; T is the same on every rank
        counted_H    int64 [H]: 1 for the phase whose load the tokens are, zeros where they are none
        """
        layer = self._layer
        given = RouterInput(x_TD, layer.gate(x_TD), NO_TOKEN_IDS)
        choice = layer.router.choose(given, self._backend)
        applied = apply(layer.maths.routing, choice, layer.weights.path.enter(x_TD))
        routed = applied.routed if isinstance(applied, RoutedBesideZero) else applied
        experts_TK = torch.where(real_T[:, None], routed.experts.ids_TK, NOT_SENT)
        zero_TK = (routed.experts.ids_TK == NOT_SENT) & real_T[:, None]
        self.zero_H.add_(counted_H * zero_TK.sum())
        placed = self._with_shared(
            Placed(
                routed.x_TZ,
                PhysicalIds(self._slots(experts_TK)),
                LogicalIds(experts_TK),
                routed.weights_TK,
            ),
            x_TD,
            real_T,
        )
        y_TZ = self._routed(placed, counted_H)
        num_experts = self.sent_HE.shape[1]
        named_M = torch.where(experts_TK >= 0, experts_TK, num_experts).reshape(-1)
        self.sent_HE.add_(counted_H[:, None] * _counts(named_M[None], num_experts))
        self.shared_HM.add_(counted_H[:, None] * real_T.sum())
        if isinstance(applied, RoutedBesideZero):
            y_TZ = y_TZ + routed.x_TZ * applied.identity_T[:, None]
        y_TD = self._beside(x_TD, layer.weights.path.leave(y_TZ))
        return torch.where(real_T[:, None], y_TD, 0)

    def refuse_faults(self) -> None:
        """Raise UnplacedExpert or StaleTable if any run since the last call met what they say.

        Its output is wrong then and must not be used. Waits for the device.
        """
        unplaced, stale = to_ints(self.faults_2)
        self.faults_2.zero_()
        if unplaced:
            raise UnplacedExpert(layer=self._layer.index, experts=())
        if stale:
            raise StaleTable(layer=self._layer.index, rank=self._ranks.rank, wrong=())

    def _with_shared(self, placed: Placed, x_TD: Tensor, real_T: Tensor) -> Placed:
        """Send each row that is a token to shared experts in slots too; faults are counted."""
        gates, first = self._layer.weights.in_slots, self._layer.maths.routing.num_experts
        if not gates:
            return placed
        weights_TM = shared_weights(x_TD, gates)
        mixed = with_shared(placed, weights_TM, slots_M=self.shared_M, first=first)
        slots_TK = torch.where(real_T[:, None], mixed.slots.ids_TK, NOT_SENT)
        return replace(mixed, slots=PhysicalIds(slots_TK))

    def _slots(self, experts_TK: Tensor) -> Tensor:
        """Return int64 [T, K]: the slot of each pair, or NOT_SENT; those without are counted."""
        sent_TK = experts_TK != NOT_SENT
        safe_TK = torch.where(sent_TK, experts_TK, 0)
        num_choices = self.table_EJ.shape[1]
        rows_T = torch.arange(experts_TK.shape[0], device=experts_TK.device) % num_choices
        slots_TK = torch.where(sent_TK, self.table_EJ[safe_TK, rows_T[:, None]], NOT_SENT)
        self.faults_2[_UNPLACED].add_((sent_TK & (slots_TK < 0)).sum())
        return slots_TK

    def _routed(self, placed: Placed, counted_H: Tensor) -> Tensor:
        """Return [T, Z]: the summed experts of each token."""
        gather, weights = self._ranks.gather, placed.weights_TK
        shares_AZ = self._own_slots(
            Placed(
                gather(placed.x_TZ),
                PhysicalIds(gather(placed.slots.ids_TK)),
                LogicalIds(gather(placed.experts.ids_TK)),
                gather(weights),
            ),
            gather(counted_H[None]),
        )
        return self._ranks.add_up(shares_AZ)

    def _own_slots(self, seen: Placed, counted_NH: Tensor) -> Tensor:
        """Return [A, Z]: this rank's share of all tokens; rows received and faults are counted."""
        num_slots, num_ranks = self.held_S.shape[0], self._ranks.size
        local_AK = seen.slots.ids_TK - self._first_slot
        is_own_AK = (local_AK >= 0) & (local_AK < num_slots) & (seen.slots.ids_TK != NOT_SENT)
        holds_AK = self.held_S[torch.where(is_own_AK, local_AK, 0)]
        self.faults_2[_STALE].add_((is_own_AK & (holds_AK != seen.experts.ids_TK)).sum())
        named_M = torch.where(is_own_AK, local_AK, num_slots).reshape(-1)
        order_M = self._backend.order_by_group(named_M)
        counts_NS = _counts(named_M.view(num_ranks, -1), num_slots)
        self.received_HS.add_((counted_NH[:, :, None] * counts_NS[:, None]).sum(dim=0))
        top_k = local_AK.shape[1]
        computed = compute_grouped(
            Dispatched(
                rows=PlainRows(seen.x_TZ[torch.div(order_M, top_k, rounding_mode="floor")]),
                counts=GroupCounts(counts_NS.sum(dim=0)),
                received_NS=counts_NS,
                claimed_NS=self.held_S[None],
                carry=None,
            ),
            plain_of(self._layer.state.slots.weights(self._layer.index)),
            activation=self._layer.maths.activation,
            backend=self._backend,
        )
        index_AK = torch.where(is_own_AK, inverse(order_M).view_as(local_AK), -1)
        return self._backend.weighted_sum(computed.rows_MZ, index_AK, seen.weights_TK)

    def _beside(self, x_TD: Tensor, y_TD: Tensor) -> Tensor:
        timeline = InOrder()
        for moment in Moment:
            timeline.mark(moment)
        for expert in self._layer.weights.shared:
            y_TD = y_TD + compute_shared(
                x_TD,
                expert,
                activation=self._layer.maths.activation,
                backend=self._backend,
                timeline=timeline,
            )
        return y_TD


def _counts(numbers_NM: Tensor, size: int) -> Tensor:
    """Return int64 [N, size]: how often each number below `size` is in each row."""
    none = numbers_NM.new_zeros((numbers_NM.shape[0], size + 1))
    return none.scatter_add(1, numbers_NM, torch.ones_like(numbers_NM))[:, :size]


def _refuse_untraceable(layer: MoELayer) -> None:
    reasons: list[str] = []
    if not isinstance(layer.router, ScoreRouter):
        reasons.append("routing by token ids or by the model's function is checked on the host")
    if isinstance(plain_of(layer.state.slots.weights(layer.index)), BiasedWeights):
        reasons.append("biases of experts are spread by counts that the host reads")
    if reasons:
        raise Unsupported(f"layer {layer.index} as a traced one", reasons=reasons)
