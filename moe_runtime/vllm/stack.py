"""The MoE layers of one loaded model on one rank, served by our stages.

Axes    T rows of the batch   Z width of the routed part   L layers   S local slots
        E experts   J rows of a table   N ranks
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.contracts.errors import BadTable
from moe_runtime.contracts.step import Phase, Step, StepKind
from moe_runtime.contracts.tokens import NO_TOKEN_IDS, TokenIds
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.exchange.peers import Peers, announce
from moe_runtime.exchange.standing import standing_of
from moe_runtime.layer.given import LayerInput
from moe_runtime.layer.layer import MoELayer, Way, WholeBatch
from moe_runtime.layer.passage import Passage
from moe_runtime.placement.counters import CounterSnapshot
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.placement.slots import ExpertSlots, Install
from moe_runtime.vllm.capturing import EngineRecorder, Listening

__all__ = ["OwnedStack", "Ranks", "StackFacts", "StepScope"]


CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What the layers have in common."""

    names: tuple[str, ...]
    """[L] each layer's name in the model."""
    num_experts: int
    top_k: int
    num_groups: int
    """Groups into which the routers divide the experts; 1 where they do not all do the same."""
    home: torch.device = CPU
    """Where they are computed."""

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.names)


@dataclass(frozen=True, slots=True)
class StepScope:
    """What the engine is doing, told before it runs forwards."""

    kind: StepKind
    phase: Phase
    num_real: int
    """Tokens among the rows; what follows them is padding. -1: all rows are tokens."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who takes part in a forward."""

    group: Peers
    """All ranks that hold experts."""
    sharing: Peers
    """Those among them that are given the same rows; alone where rows are a rank's own."""
    is_replicated: bool
    """Whether ranks that share rows all compute all of them."""
    piece: int = 0
    """Of an engine's rows, cut into equal pieces by vLLM, the one that this rank is given."""
    hosts: Peers | None = None
    """All that hold experts, over the memory of hosts, where `group` is one of devices."""

    def own_rows(self, num_rows: int) -> list[int]:
        """Return how many of the shared rows each sharing rank takes.

        >>> from moe_runtime.exchange.peers import Alone
        >>> Ranks(Alone(), Alone(), is_replicated=False).own_rows(7)
        [7]
        """
        size = self.sharing.size
        return [num_rows // size + (rank < num_rows % size) for rank in range(size)]


class OwnedStack:
    """All owned layers of a model, in order.

    All methods are for the step's thread, except that the views of `slots` may be read and
    its staging rows written by a thread that moves weights.
    """

    def __init__(
        self,
        facts: StackFacts,
        layout: SlotLayout,
        ranks: Ranks,
        layers: Sequence[MoELayer],
        passage: Passage,
        routers: Sequence[Listening],
    ) -> None:
        self.facts = facts
        self.layout = layout
        self.ranks = ranks
        self._standing = standing_of(ranks.group)
        self._layers = tuple(layers)
        self._passage = passage
        self._routers = tuple(routers)
        self._state = state = layers[0].state
        self._base = layout.base(ranks.group.rank)
        self._scope = StepScope(StepKind.PROFILE, Phase.PREFILL, -1)
        self._way: Way | None = None
        self.num_forwards = 0
        """Of this rank, of whatever kind."""
        for layer in range(facts.num_layers):
            self._check_own(layer, state.tables.snapshot()[layer])

    @property
    def slots(self) -> ExpertSlots[ExpertWeights]:
        """The slots and staging rows of this rank."""
        return self._state.slots

    def enter(self, scope: StepScope) -> StepScope:
        """Say what the next forwards are; return what was said before."""
        before, self._scope = self._scope, scope
        return before

    def forward(
        self, index: int, x_TZ: Tensor, logits_TX: Tensor, token_ids_T: Tensor | None
    ) -> Tensor:
        """Run one layer: [T, Z], zeros in padding rows.

        Collective over the group, in order of the layers; the first one begins the step. Whatever
        it raises, peers may wait for the rest of the step: what follows is GroupLost.
        """
        self._standing.require()
        with self._standing.told():
            return self._forward(index, x_TZ, logits_TX, token_ids_T)

    def _forward(
        self, index: int, x_TZ: Tensor, logits_TX: Tensor, token_ids_T: Tensor | None
    ) -> Tensor:
        num_real, sizes = self._num_real(x_TZ.shape[0]), [x_TZ.shape[0]]
        if self.ranks.sharing.size > 1 and not self.ranks.is_replicated:
            sizes = self.ranks.own_rows(x_TZ.shape[0])
            start = sum(sizes[: self.ranks.sharing.rank])
            own = slice(start, start + sizes[self.ranks.sharing.rank])
            x_TZ, logits_TX = x_TZ[own], logits_TX[own]
            num_real = min(max(num_real - start, 0), len(x_TZ))
            token_ids_T = None if token_ids_T is None else token_ids_T[own]
        # What is real comes before all padding.
        real_T = torch.arange(len(x_TZ), device=self.facts.home) < num_real
        way = self._begin(real_T, num_real, sizes) if index == 0 else self._way
        assert way is not None, "a forward began in the middle of the model"
        ids = NO_TOKEN_IDS if token_ids_T is None else TokenIds(token_ids_T)
        y_TZ = self._layers[index].forward(LayerInput(x_TZ, logits_TX, real_T, ids), way)
        return y_TZ if len(sizes) == 1 else self.ranks.sharing.all_gather(y_TZ, sizes)

    def install(self, layer: int, installs: Sequence[Install], held_S: npt.ArrayLike) -> None:
        """Copy staged experts into slots of one layer, in place; `set_table` must follow.

        held_S    [S]  what the layer's slots hold afterwards, -1 for empty

        Raises BadInstall, with nothing changed.
        """
        self.slots.install(layer, installs, held_S)

    def set_table(self, layer: int, table_EJ: npt.ArrayLike) -> None:
        """Replace one layer's dispatch table, in place.

        Raises BadTable, with the old one kept, if it names a slot that does not exist or one of
        this rank's slots for an expert that the slot does not hold.
        """
        table = np.array(table_EJ, dtype=np.int64)
        self._state.tables.check(layer, table)
        self._check_own(layer, table)
        self._state.tables.set(layer, table)

    def live_table(self, layer: int) -> Tensor:
        """Return the int64 [E, J] table that is read by the next forward."""
        return self._state.tables.table(layer)

    def held(self) -> npt.NDArray[np.int64]:
        """Return a copy of [L, S]: the logical expert in each of this rank's slots, or -1."""
        return self.slots.held()

    def tables(self) -> npt.NDArray[np.int64]:
        """Return a copy of [L, E, J]: the slots that this rank's tokens use."""
        return self._state.tables.snapshot()

    def counters(self) -> CounterSnapshot:
        """Return a copy of all load totals."""
        return self._state.counters.snapshot()

    def _num_real(self, num_rows: int) -> int:
        """Return how many of the given rows are tokens."""
        if self._scope.kind is StepKind.DUMMY:
            return 0
        if self._scope.num_real < 0:
            return num_rows
        return min(max(self._scope.num_real - self.ranks.piece * num_rows, 0), num_rows)

    def _begin(self, real_T: Tensor, num_real: int, sizes: Sequence[int]) -> Way:
        self.num_forwards += 1
        step = Step(self._scope.kind, self._scope.phase)
        view = announce(self.ranks.group, step, num_rows=num_real, home=self.facts.home)
        self._state.counters.record_step(view, padding_rows=real_T.shape[0] - num_real)
        recorder = EngineRecorder(self._routers, real_T, self.ranks.sharing, sizes)
        way = self._way = Way(view, self._passage, WholeBatch(), recorder)
        return way

    def _check_own(self, layer: int, table_EJ: npt.NDArray[np.int64]) -> None:
        local = table_EJ - self._base
        own = (local >= 0) & (local < self.slots.num_slots)
        experts, rows = np.nonzero(own)
        holds = self.slots.held()[layer][local[experts, rows]]
        if wrong := sorted(set(experts[holds != experts].tolist())):
            raise BadTable(
                layer=layer,
                reason=f"experts {wrong} are sent to slots of rank {self.ranks.group.rank} "
                "that do not hold them",
            )
