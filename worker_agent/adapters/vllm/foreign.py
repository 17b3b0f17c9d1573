"""Engines whose own loop moves experts: it takes our orders in the place of its own plans.

Axes    H phases   L layers   S local slots   P slots of all ranks   E experts   J table rows
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from eplb_service.domain.deployment import ModelShape
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.domain.wave import Order
from moe_runtime.vllm import CounterSnapshot, Install, Phase, StepKind
from moe_runtime.vllm import SlotLayout as RuntimeLayout
from worker_agent.adapters.memory import DigestBook
from worker_agent.adapters.runtime import Seat, SlotsEngine
from worker_agent.agent.checks import EngineFault, no_fault

__all__ = [
    "Counts",
    "ForeignLoop",
    "ForeignShape",
    "LoadAccount",
    "LoopSlots",
    "NotCarriedOut",
    "seat_of_loop",
]

Counts = npt.NDArray[np.int64]


class NotCarriedOut(Exception):
    """The engine's loop did not do, or cannot do, what it was ordered."""

    code = "not_carried_out"


@dataclass(frozen=True, slots=True)
class ForeignShape:
    """What the engine's loop balances."""

    num_layers: int
    num_experts: int
    num_slots: int
    """Of this rank, S."""
    num_ranks: int
    rank: int
    top_k: int
    bytes_per_expert: int
    adapter: str
    ownership: Ownership


class LoopSlots(ABC):
    """The engine's slots; staging is the engine's own, so its size bounds no wave."""

    def __init__(self, shape: ForeignShape) -> None:
        self.num_slots = shape.num_slots
        self.staging_rows = shape.num_layers * shape.num_slots

    @abstractmethod
    def expert_tensors(self, layer: int, local_slot: int) -> dict[str, Tensor]:
        """Return views onto the live memory of one slot."""

    def staging_tensors(self, row: int) -> dict[str, Tensor]:
        """Raise: nobody but the engine writes what it stages."""
        raise NotCarriedOut(f"staging row {row} is the engine's own; nothing may be put into it")


class ForeignLoop(ABC):
    """Meets Served for one rank whose engine moves experts itself."""

    def __init__(self, shape: ForeignShape, slots: LoopSlots) -> None:
        self.shape = shape
        self.slots = slots
        self.account = LoadAccount(shape)
        self.layout = RuntimeLayout((shape.num_slots,) * shape.num_ranks)

    @abstractmethod
    def carry_out(self, order: Order, after: Placement) -> None:
        """Have the engine do what all ranks have agreed on. Collective; raises NotCarriedOut."""

    @abstractmethod
    def slot_contents(self) -> Counts:
        """Return [L, P]: what the engine says that each slot of all ranks holds."""

    def counters(self) -> CounterSnapshot:
        """Return a copy of all load totals."""
        return self.account.snapshot()

    def placement(self) -> Placement:
        """Return what the engine serves."""
        shape = self.shape
        layout = SlotLayout(self.layout.slots_per_rank)
        return Placement(self.slot_contents().astype(np.int32), shape.num_experts, layout)

    def held(self) -> Counts:
        """Return [L, S]."""
        base = self.layout.base(self.shape.rank)
        return self.slot_contents()[:, base : base + self.shape.num_slots]

    def tables(self) -> Counts:
        """Return [L, E, J]: by the even rule, which is the engine's own."""
        shares = even_shares(self.placement(), self.shape.ownership)
        return shares.table_of(self.shape.rank).astype(np.int64)

    def install(self, layer: int, installs: Sequence[Install], held: npt.ArrayLike, /) -> None:
        """Leave it to the engine, which was told by `carry_out`."""
        del layer, installs, held

    def set_table(self, layer: int, table: npt.ArrayLike, /) -> None:
        """Leave it to the engine, which makes its tables from the placement."""
        del layer, table


class ForeignEngine(SlotsEngine):
    """Meets EnginePort."""

    def __init__(self, loop: ForeignLoop, book: DigestBook, *, rank: int) -> None:
        super().__init__(loop, book, rank=rank)
        self._loop = loop
        self.staging_rows = 0
        """Before the first step the engine moves nothing: it starts where it was loaded."""

    def load(self, placement: Placement, table: IntArray) -> None:
        """Refuse any placement but that which was loaded; its table is the engine's own."""
        del table
        if not np.array_equal(placement.phy2log, self._loop.placement().phy2log):
            raise NotCarriedOut(
                "another placement was named before the first step than the engine loaded"
            )

    def switch(self, order: Order) -> None:
        """Have the engine do it, and note what its slots hold from then on."""
        self._loop.carry_out(order, order.content.apply(self._loop.placement()))
        super().switch(order)


def seat_of_loop(loop: ForeignLoop, *, fault: EngineFault = no_fault) -> Seat:
    """Return the seat of an engine's own loop.

    fault    says why the loop would carry an order out wrongly
    """
    shape = loop.shape
    return Seat(
        loop,
        ModelShape(
            layers=tuple(range(shape.num_layers)),
            num_experts=shape.num_experts,
            num_shared=0,
            top_k=shape.top_k,
            bytes_per_expert=shape.bytes_per_expert,
        ),
        engine=lambda book, rank: ForeignEngine(loop, book, rank=rank),
        adapter=shape.adapter,
        ownership=shape.ownership,
        sets_shares=False,
        fault=fault,
    )


class LoadAccount:
    """What all slots received, as every rank is told it, and what this rank says of it.

    An engine does not tell whose tokens it counted. So that nothing seems lost on the way, all
    tokens are said to be of rank 0, or of every rank where all of them hold all tokens.
    """

    def __init__(self, shape: ForeignShape) -> None:
        self._shape = shape
        self._says_sent = shape.rank == 0 or shape.ownership is Ownership.REPLICATED
        self._received_LS = np.zeros((shape.num_layers, shape.num_slots), dtype=np.int64)
        self._sent_LE = np.zeros((shape.num_layers, shape.num_experts), dtype=np.int64)
        self._tokens = 0
        self._steps = 0

    def add(self, received: Counts, contents: Counts, *, steps: int) -> None:
        """Add what all slots received in some steps, and which expert each of them held."""
        base = self._shape.rank * self._shape.num_slots
        self._received_LS += received[:, base : base + self._shape.num_slots]
        self._steps += steps
        if self._says_sent:
            for layer, row in enumerate(contents):
                np.add.at(self._sent_LE[layer], row, received[layer])
            self._tokens += int(received[0].sum()) // self._shape.top_k

    def snapshot(self) -> CounterSnapshot:
        """Copy all totals; the engine tells no phases, so all is said to be decode."""
        num_layers, num_slots = self._received_LS.shape
        by_slot = np.zeros((len(Phase), num_layers, num_slots), dtype=np.int64)
        by_slot[Phase.DECODE] = self._received_LS
        by_expert = np.zeros((len(Phase), *self._sent_LE.shape), dtype=np.int64)
        by_expert[Phase.DECODE] = self._sent_LE
        tokens = np.zeros(len(Phase), dtype=np.int64)
        tokens[Phase.DECODE] = self._tokens
        steps = np.zeros(len(StepKind), dtype=np.int64)
        steps[StepKind.REAL] = self._steps
        return CounterSnapshot(
            received_HLS=by_slot,
            sent_HLE=by_expert,
            shared_HLM=np.zeros((len(Phase), num_layers, 0), dtype=np.int64),
            zero_HL=np.zeros((len(Phase), num_layers), dtype=np.int64),
            tokens_H=tokens,
            steps_G=steps,
            padding_rows=0,
            overflow_rows=0,
            expert_seconds=0.0,
        )
