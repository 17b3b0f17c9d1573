"""A stack of MoE layers on one rank.

Axes    T rows   D model width   L layers   S local slots   E experts   J rows of a table
        X experts to choose from   M shared experts that sit in slots

    x = x + layer(rms_norm(x))    for each layer
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.backends.coding import FormCoder
from moe_runtime.capture.step import NO_CAPTURE, Captured, Recorder, StepRecorder
from moe_runtime.contracts.adapters import ExpertAdapters
from moe_runtime.contracts.errors import DummyStepWithTokens
from moe_runtime.contracts.exchange_errors import ImpossibleMode, RanksDisagree
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.step import StepKind
from moe_runtime.contracts.torch_calls import whole
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.exchange.peers import Marks, Peers, announce
from moe_runtime.formats.packing import Packing
from moe_runtime.layer.given import LayerInput, LayerMaths, RankState
from moe_runtime.layer.layer import MoELayer, Way
from moe_runtime.layer.parts import rms_norm
from moe_runtime.placement.counters import CounterSnapshot, LoadCounters
from moe_runtime.placement.slots import ExpertSlots, Install
from moe_runtime.routing.router import bind
from moe_runtime.runtime.adapting import LoadedAdapters
from moe_runtime.runtime.batch import Batch, ByGate, ByLogits
from moe_runtime.runtime.checking import check_batch, check_memory
from moe_runtime.runtime.device import Device
from moe_runtime.runtime.loading import (
    ServedAs,
    at_home,
    load_slots,
    marks_of_kept,
    require_modes,
    served_as,
    served_expert,
    served_layer,
)
from moe_runtime.runtime.marks import fingerprint, mark_of_model, mark_of_parts, mark_of_settings
from moe_runtime.runtime.model import UNPACKED, Model, StackShape
from moe_runtime.runtime.routes import Routes
from moe_runtime.runtime.start import FromModel, KeptRows, Start, check_start
from moe_runtime.runtime.stepping import OneAtATime, one_at_a_time
from moe_runtime.runtime.surroundings import lasting
from moe_runtime.runtime.traffic import Traffic
from moe_runtime.runtime.ways import Ways

__all__ = ["MoeRuntime"]


class MoeRuntime:
    """One rank of the stack.

    All methods are for the step's thread (StepsOverlap tells of others), except that a thread that
    moves weights may read the views of `slots` and write its staging rows. `routes` has the slots
    of shared experts, where those sit in slots.

    Building one is collective. Where that breaks off on a rank, as by an expert that it cannot
    read, its group is lost like in the middle of a step; RanksDisagree is raised on all alike.
    """

    def __init__(
        self,
        model: Model,
        start: Start,
        *,
        peers: Peers,
        mode: ExchangeMode | Traffic,
        dtype: torch.dtype = torch.float32,
        packing: Packing = UNPACKED,
    ) -> None:
        self._peers, self.guard = peers, OneAtATime(peers)
        with lasting(start.device.home), self.guard.standing.told(RanksDisagree):
            shape = model.shape
            traffic = mode if isinstance(mode, Traffic) else Traffic(mode=mode)
            require_modes(shape, traffic, start.device, dtype=dtype, packing=packing)
            held_LS = whole(start.held_LS, "held_LS")
            check_start(shape, start, peers)
            self.model, self.layout = model, start.layout
            self.served = served_as(traffic, packing, dtype)
            self.device = start.device
            self.slots, marks_LE = _load(model, start, held_LS, self.served)
            self.routes = Routes(start, shape, self.slots, rank=peers.rank)
            self._counters = LoadCounters(
                num_layers=shape.num_layers,
                num_slots=self.slots.num_slots,
                num_experts=shape.num_experts,
                num_shared=shape.num_shared_in_slots,
                home=start.device.home,
            )
            self.mode, self._capture = traffic.mode, traffic.capture
            coder = FormCoder(self.device.backend, packing.format.rows)
            self._ways = Ways(peers, self.layout, shape, traffic, coder, self.device)
            self._adapters = LoadedAdapters(traffic.num_adapters, dtype, start.device.home)
            state = RankState(self.slots, self.routes.tables, self._counters)
            self.layers = _layers(model, state, dtype, self.device)
            self._ways.check()
            alike = {**self._ways.numbers(), "model": mark_of_model(shape, dtype, packing)}
            alike["weights beside slots"] = mark_of_parts([layer.weights for layer in self.layers])
            self._settings_mark = mark_of_settings(alike)
            self._number = self.guard.number_of(alike, marks_LE, home=start.device.home)

    @one_at_a_time
    def forward(self, batch: Batch) -> Tensor:
        """Run one step: [T, D]; padding rows come back as they were given.

        Collective: every rank of the group calls it for every step, with a dummy batch if it has
        nothing to do. One collective, and for each layer 2 (AllGather, MC2), 3 (All2All), 4
        (hierarchical MC2) or 5 (fused MC2); one more where pieces of a team's tokens are gathered,
        and one for captured ids that lie over a team.

        Raises ShapeMismatch, WrongMemory, NoGradients, MissingTokenIds, TokenIdOutOfRange,
        BadAdapter, DummyStepWithTokens and StepsOverlap, before the group hears of the step, if it
        cannot begin; RanksDisagree and ImpossibleMode, on all ranks alike, if they do not exchange
        alike, serve other models or step different runtimes; after these the group is as usable as
        before. Whatever else is raised, by a stage, a routing function of the model's own or an
        exchange, loses the group unless this rank is alone: peers may wait for the rest of the step
        until the deadline of the exchange, and every further step and change of any runtime over
        the group is GroupLost on this rank. A sink of captured ids is called after all that.
        """
        check_batch(self.model.shape, batch)
        check_memory(batch, self.device.home)
        self._adapters.check(batch)
        marks, standing = self._marks(batch), self.guard.standing
        recorder = NO_CAPTURE if self._capture is None else _recorder(self.model.shape)
        with standing.told(DummyStepWithTokens, RanksDisagree, ImpossibleMode):
            way = self._enter(batch, marks, recorder)
        with standing.told():
            x_TD = _through(
                self.layers, self._adapters, batch, batch.x_TD.to(self.served.dtype), way
            )
            captured = _captured(self._ways, recorder, way)
        if self._capture is not None and captured is not None:
            self._capture.take(captured)
        return x_TD

    def _enter(self, batch: Batch, marks: Marks, recorder: Recorder) -> Way:
        """Tell the group of a step, and return how it goes."""
        home, num_real = self.device.home, int(batch.real_T.sum())
        announced = announce(self._peers, batch.step, num_rows=num_real, marks=marks, home=home)
        way = self._ways.way(announced, recorder)
        self._counters.record_step(way.view, padding_rows=batch.x_TD.shape[0] - num_real)
        return way

    @one_at_a_time
    def install(self, layer: int, installs: Sequence[Install], held_S: npt.ArrayLike) -> None:
        """Copy staged experts into slots of one layer, in place; `set_table` must follow.

        held_S    [S]  what slots hold afterwards, -1 for empty; raises BadInstall, nothing changed
        """
        self.slots.install(layer, installs, held_S)

    @one_at_a_time
    def load_adapters(self, layers: Sequence[ExpertAdapters]) -> None:
        """Have tokens use other LoRA adapters from the next step on; on every rank the same ones.

        layers    of each layer, with as many adapters as `Traffic.num_adapters` says

        Raises ShapeMismatch, with those before kept. A step of ranks that have loaded different
        ones ends in RanksDisagree, on all of them, before it begins.
        """
        self._adapters = self._adapters.replaced_by(layers, self.model.shape)

    @one_at_a_time
    def set_table(self, layer: int, table_EJ: npt.ArrayLike) -> None:
        """Replace one layer's dispatch table, in place.

        Raises BadTable, with the old one kept, if it names a slot that does not exist or one of
        this rank's slots for an expert that the slot does not hold.
        """
        self.routes.set_table(layer, table_EJ)

    def held(self) -> npt.NDArray[np.int64]:
        """Return a copy of [L, S]: the logical expert in each of this rank's slots, or -1."""
        return self.slots.held()

    def tables(self) -> npt.NDArray[np.int64]:
        """Return a copy of [L, E, J]: the slots that this rank's tokens use."""
        return self.routes.tables.snapshot()

    def counters(self) -> CounterSnapshot:
        """Return a copy of all load totals."""
        return self._counters.snapshot()

    def expert(self, layer: int, expert: int) -> ExpertWeights:
        """Return one expert fresh from the model, as it is served: stacks of one slot.

        Raises ShapeMismatch for one that the model has not.
        """
        return served_expert(self.model, (layer, expert), self.served)

    def _marks(self, batch: Batch) -> Marks:
        """Return what ranks compare before a step; tokens only where a team holds them alike."""
        return Marks(
            tables=self.routes.mark(),
            settings=self._settings_mark ^ self._adapters.mark,
            tokens=fingerprint(batch) if self._ways.compares_tokens else 0,
            runtime=self._number,
        )


def _recorder(shape: StackShape) -> StepRecorder:
    return StepRecorder(num_layers=shape.num_layers, num_experts=shape.num_candidates)


def _captured(ways: Ways, recorder: Recorder, way: Way) -> Captured | None:
    """Return what the sink is given: what was captured, if its tokens were asked for by anyone."""
    if not isinstance(recorder, StepRecorder):
        return None
    ids_TLK = ways.captured_over_team(recorder.ids(), way)
    return Captured(ids_TLK) if way.view.own.kind is StepKind.REAL else None


def _through(
    layers: Sequence[MoELayer], loaded: LoadedAdapters, batch: Batch, x_TD: Tensor, way: Way
) -> Tensor:
    """Return [T, D]: what comes out of the last layer."""
    for layer in layers:
        normed_TD = rms_norm(x_TD)
        match batch.router:
            case ByGate():
                logits_TX = layer.gate(normed_TD)
            case ByLogits(logits_LTE):
                logits_TX = logits_LTE[layer.index]
        adapters = loaded.of_layer(layer.index, batch)
        given = LayerInput(normed_TD, logits_TX, batch.real_T, batch.token_ids, adapters)
        x_TD = x_TD + layer.forward(given, way)
    return x_TD


def _load(
    model: Model, start: Start, held_LS: npt.NDArray[np.int64], served: ServedAs
) -> tuple[ExpertSlots[ExpertWeights], npt.NDArray[np.int64]]:
    """Return the slots, filled, and [L, E] the checksum of each expert that was read."""
    home, num_experts = start.device.home, model.shape.num_experts + model.shape.num_shared_in_slots
    marks_LE = np.zeros((len(held_LS), num_experts), dtype=np.int64)
    layers: list[ExpertWeights] = []
    for i, held_S in enumerate(held_LS):
        match start.rows:
            case FromModel():
                stacks, marks = load_slots(model, i, held_S, served, home=home)
            case KeptRows(kept):
                stacks, marks = kept[i], marks_of_kept(kept[i], held_S)
        layers.append(stacks)
        marks_LE[i, [*marks]] = [*marks.values()]
    slots = ExpertSlots(
        layers, held_LS=held_LS, staging_rows=start.staging_rows, num_experts=num_experts
    )
    return slots, marks_LE


def _layers(
    model: Model, state: RankState, dtype: torch.dtype, device: Device
) -> tuple[MoELayer, ...]:
    shape = model.shape
    maths = LayerMaths(
        shape.selector, shape.activation, device.backend, device.now, device.timeline
    )
    parts = [
        at_home(served_layer(model, layer, dtype), device.home) for layer in range(shape.num_layers)
    ]
    path = device.gating(shape.selector)
    return tuple(
        MoELayer(i, w, bind(shape.selector, w.router, path=path), maths, state)
        for i, w in enumerate(parts)
    )
