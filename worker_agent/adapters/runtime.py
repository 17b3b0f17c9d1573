"""Our runtime as an engine: its slots, tables and counters.

Axes    L layers   S local slots   E experts   J table rows   H phases
        M shared experts that sit in slots
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from eplb_service.domain.deployment import ModelShape
from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.shares import Ownership
from eplb_service.domain.wave import LAYER, TARGET, Order, received_by
from moe_runtime.runtime import CounterSnapshot, Install, MoeRuntime, StepKind, digest, groups_of
from moe_runtime.runtime import SlotLayout as RuntimeLayout
from worker_agent.adapters.chunked_mover import DeviceLink
from worker_agent.adapters.memory import DigestBook, Maps
from worker_agent.adapters.shared_slots import shared_slots
from worker_agent.agent.checks import EngineFault, no_fault
from worker_agent.ports.engine import Counters, StepTotals

Runtime: TypeAlias = MoeRuntime


class Slots(Protocol):
    """Slots and staging rows of one rank."""

    num_slots: int
    staging_rows: int

    def expert_tensors(self, layer: int, local_slot: int) -> dict[str, Tensor]:
        """Return views onto the live memory of one slot."""
        ...

    def staging_tensors(self, row: int) -> dict[str, Tensor]:
        """Return views onto one staging row."""
        ...


class Served(Protocol):
    """What any front door of the runtime has: one rank's layers, whose experts can be moved."""

    @property
    def layout(self) -> RuntimeLayout:
        """How many slots each rank has."""
        ...

    @property
    def slots(self) -> Slots:
        """The slots of this rank."""
        ...

    def install(self, layer: int, installs: Sequence[Install], held: npt.ArrayLike, /) -> None:
        """Copy staged experts into slots of one layer."""
        ...

    def set_table(self, layer: int, table: npt.ArrayLike, /) -> None:
        """Replace one layer's dispatch table."""
        ...

    def held(self) -> npt.NDArray[np.int64]:
        """Return [L, S]."""
        ...

    def tables(self) -> npt.NDArray[np.int64]:
        """Return [L, E, J]."""
        ...

    def counters(self) -> CounterSnapshot:
        """Return a copy of all load totals."""
        ...


class RuntimeMemory:
    """Meets ExpertMemory."""

    def __init__(self, runtime: Served) -> None:
        self._runtime = runtime
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

    def maps(self) -> Maps:
        """Copy what the engine goes by now."""
        return Maps(self._runtime.held(), self._runtime.tables())


class SlotsEngine(ABC):
    """Meets EnginePort but for where weights come from at a start, which is the subclass's."""

    def __init__(self, runtime: Served, book: DigestBook, *, rank: int) -> None:
        self._runtime = runtime
        self._book = book
        self._rank = rank
        self._base = runtime.layout.base(rank)
        self._layout = SlotLayout(runtime.layout.slots_per_rank)
        self.staging_rows = runtime.slots.staging_rows

    @abstractmethod
    def load(self, placement: Placement, table: IntArray) -> None:
        """Put a placement in use before the first step."""

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

    def restore(self, layer: int, local_slot: int, row: int) -> None:
        """Copy what is staged in a row to a slot that holds, by name, the same expert."""
        held = self._runtime.held()[layer]
        installs = [Install(local_slot, row)]
        self._runtime.install(layer, installs, held)
        self._note(layer, installs, held)

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
            overflow_tokens=now.overflow_rows,
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


class RuntimeEngine(SlotsEngine):
    """An engine that can make any of its model's experts itself."""

    def __init__(self, runtime: MoeRuntime, book: DigestBook, *, rank: int) -> None:
        super().__init__(runtime, book, rank=rank)
        self._source = runtime

    def load(self, placement: Placement, table: IntArray) -> None:
        """Put a placement in use before the first step, from the model's own weights."""
        own = placement.phy2log[:, placement.layout.slots_of(self._rank)]
        for layer, shared in enumerate(shared_slots(placement, self._rank)):
            self._load_layer(layer, own[layer])
            self._runtime.set_table(layer, table[layer])
            self._source.routes.set_shared(layer, shared)

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
        for name, stack in self._source.expert(layer, expert).named().items():
            staging[name].copy_(stack[0])


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank of an engine, as an agent is attached to it."""

    runtime: Served
    shape: ModelShape
    """Its layers are numbered from 0; the deployment may name the model's own numbers."""
    engine: Callable[[DigestBook, int], SlotsEngine]
    """Makes the engine, from a book and the rank's number."""
    adapter: str = "moe_runtime"
    ownership: Ownership = Ownership.OWN
    sets_shares: bool = True
    """Whether a table may change alone, between two steps; not where a rule fixes replicas."""
    fault: EngineFault = no_fault
    """Says why the engine would carry an order out wrongly; None where it would not."""
    link: DeviceLink | None = None
    """How weights move from device to device; None: our own runtime's way, or through hosts."""


def seat_of(runtime: MoeRuntime) -> Seat:
    """Return the seat of our own engine."""
    shape = runtime.model.shape
    expert = runtime.expert(0, 0).named()
    return Seat(
        runtime,
        ModelShape(
            layers=tuple(range(shape.num_layers)),
            num_experts=shape.num_experts,
            num_shared=shape.num_shared_in_slots,
            top_k=shape.selector.top_k,
            bytes_per_expert=sum(stack.nbytes for stack in expert.values()),
            num_groups=groups_of(shape.selector),
        ),
        engine=lambda book, rank: RuntimeEngine(runtime, book, rank=rank),
    )


def require_device(seat: Seat, wanted: str) -> None:
    """Raise InvalidSettings unless the engine is on the device that is wanted, if any is."""
    runtime = seat.runtime
    device = str(runtime.device.home) if isinstance(runtime, MoeRuntime) else "one of its own"
    if wanted and wanted != device:
        text = f"device is {wanted}, but the engine is on {device}; the rank does not attach"
        raise InvalidSettings(text)


def link_of(seat: Seat) -> DeviceLink | None:
    """Return how a seat's weights move from device to device; None: through memory of hosts."""
    runtime = seat.runtime
    device = runtime.device if isinstance(runtime, MoeRuntime) else None
    if device is None or device.moving is None:
        return seat.link
    return DeviceLink(device.moving, device.home, device.moving_lane)


def served_by(seat: Seat, phy2log: IntArray) -> Placement:
    """Return the placement of a seat whose group holds `phy2log`: [L, P]."""
    layout = SlotLayout(seat.runtime.layout.slots_per_rank)
    return Placement(phy2log, seat.shape.num_experts, layout, seat.shape.num_shared)
