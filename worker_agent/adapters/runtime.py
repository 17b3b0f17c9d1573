"""Our runtime as an engine: its slots, tables and counters.

Axes    L layers   S local slots   E experts   J table rows   H phases
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from torch import Tensor

from eplb_service.domain.deployment import ModelShape
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.wave import LAYER, TARGET, Order, received_by
from moe_runtime.runtime import Install, MoeRuntime, StepKind, digest
from worker_agent.adapters.memory import DigestBook
from worker_agent.ports.engine import Counters, StepTotals

Runtime: TypeAlias = MoeRuntime


class RuntimeMemory:
    """Meets ExpertMemory."""

    def __init__(self, runtime: MoeRuntime) -> None:
        self._slots = runtime.slots

    def slot(self, layer: int, local_slot: int) -> Mapping[str, Tensor]:
        """Return the tensors of one slot."""
        return self._slots.expert_tensors(layer, local_slot)

    def staging(self, row: int) -> Mapping[str, Tensor]:
        """Return the tensors of one staging row."""
        return self._slots.staging_tensors(row)

    def digest(self, tensors: Mapping[str, Tensor]) -> bytes:
        """Return 16 bytes that identify an expert."""
        return digest(tensors)


class RuntimeEngine:
    """Meets EnginePort."""

    def __init__(self, runtime: MoeRuntime, book: DigestBook, *, rank: int) -> None:
        self._runtime = runtime
        self._book = book
        self._rank = rank
        self._base = runtime.layout.base(rank)
        self._layout = SlotLayout(runtime.layout.slots_per_rank)
        self.staging_rows = runtime.slots.staging_rows

    def load(self, placement: Placement, table: IntArray) -> None:
        """Put a placement in use before the first step, from the model's own weights."""
        own = placement.phy2log[:, placement.layout.slots_of(self._rank)]
        for layer, wanted in enumerate(own):
            self._load_layer(layer, wanted)
            self._runtime.set_table(layer, table[layer])

    def switch(self, order: Order) -> None:
        """Install the order's staged experts and set its tables, for all its layers."""
        content = order.content
        own = self._layout.slots_of(self._rank)
        received = received_by(content.transfers, self._layout, self._rank)
        for index, layer in enumerate(content.layers.tolist()):
            rows = np.flatnonzero(received[:, LAYER] == layer).tolist()
            installs = [Install(int(received[row, TARGET]) - self._base, row) for row in rows]
            held = content.rows[index, own]
            self._runtime.install(layer, installs, held)
            self._runtime.set_table(layer, order.dispatch[index])
            self._note(layer, installs, held)

    def apply_table(self, table: IntArray) -> None:
        """Put a dispatch table in use: [L, E, J]."""
        for layer, rows in enumerate(table):
            self._runtime.set_table(layer, rows)

    def counters(self) -> Counters:
        """Copy all load totals."""
        now = self._runtime.counters()
        return Counters(
            received=now.received_HLS,
            sent=now.sent_HLE,
            tokens=now.tokens_H,
            steps=StepTotals(
                real=int(now.steps_G[StepKind.REAL]),
                dummy=int(now.steps_G[StepKind.DUMMY]),
                warmup=int(now.steps_G[StepKind.WARMUP]),
                profile=int(now.steps_G[StepKind.PROFILE]),
            ),
            padding_rows=now.padding_rows,
            overflow_tokens=0,
            expert_seconds=now.expert_seconds,
        )

    def filled(self) -> list[tuple[int, int]]:
        """Return (layer, local slot) of every slot that holds an expert."""
        return [
            (layer, slot) for layer, slot in np.argwhere(self._runtime.held() != EMPTY).tolist()
        ]

    def _note(self, layer: int, installs: list[Install], held: IntArray) -> None:
        for install in installs:
            self._book.install(layer, install.local_slot, install.staging_row)
        for local_slot in np.flatnonzero(held == EMPTY).tolist():
            self._book.empty(layer, local_slot)

    def _load_layer(self, layer: int, wanted: IntArray) -> None:
        """Bring one layer's slots to their new content, one staging row at a time."""
        held = self._runtime.held()[layer]
        for local_slot in np.flatnonzero(held != wanted).tolist():
            expert = int(wanted[local_slot])
            held[local_slot] = expert
            installs: list[Install] = []
            if expert != EMPTY:
                self._stage(layer, expert)
                installs.append(Install(local_slot, 0))
            self._runtime.install(layer, installs, held)

    def _stage(self, layer: int, expert: int) -> None:
        staging = self._runtime.slots.staging_tensors(0)
        for name, stack in self._runtime.expert(layer, expert).named().items():
            staging[name].copy_(stack[0])


def served_by(runtime: MoeRuntime, phy2log: IntArray) -> Placement:
    """Return the placement of a runtime whose group holds `phy2log`: [L, P]."""
    return Placement(
        phy2log, runtime.model.shape.num_experts, SlotLayout(runtime.layout.slots_per_rank)
    )


def shape_of(runtime: MoeRuntime, *, model_layers: tuple[int, ...]) -> ModelShape:
    """Return what the runtime's model is, as its deployment tells it."""
    shape = runtime.model.shape
    expert = runtime.expert(0, 0).named()
    return ModelShape(
        layers=model_layers,
        num_experts=shape.num_experts,
        num_shared=0,
        top_k=shape.selector.top_k,
        bytes_per_expert=sum(stack.nbytes for stack in expert.values()),
    )
