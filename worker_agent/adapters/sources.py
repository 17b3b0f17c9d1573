"""The transfers of a wave as a mover walks them, and what a rank vouches for when it sends."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from eplb_service.domain.detours import place_number
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.wave import LAYER, TARGET, Order, received_by
from worker_agent.adapters.memory import DigestBook, ExpertMemory


class Line(NamedTuple):
    """One transfer of a wave's canonical list."""

    layer: int
    expert: int
    source: int
    target: int


def lines_of(order: Order, number: int) -> list[Line]:
    """Return the transfers of a round, the same on every rank."""
    return [Line(*map(int, row)) for row in order.content.round_transfers(number)]


def rows_of(order: Order, layout: SlotLayout, rank: int) -> dict[tuple[int, int], int]:
    """Return the staging row of each of a rank's receives, by layer and target slot."""
    places = received_by(order.content.transfers, layout, rank)[:, [LAYER, TARGET]].tolist()
    return {(layer, target): row for row, (layer, target) in enumerate(places)}


class SourceCorrupt(Exception):
    """A slot that is to be sent does not hold any more what was put there."""

    code = "source_corrupt"

    def __init__(self, line: Line, *, rank: int, local_slot: int, found: bytes) -> None:
        self.line, self.rank, self.local_slot = line, rank, local_slot
        super().__init__(
            f"layer {line.layer}, local slot {local_slot} of rank {rank} does not hold expert "
            f"{line.expert} as it was put there: its digest is {found.hex()}; nothing that comes "
            "from it is used, and the group halts"
        )


def corrupt_slot(error: Exception, layout: SlotLayout) -> int:
    """Return the number of the slot that an error names as corrupt; 0 where it names none."""
    if not isinstance(error, SourceCorrupt):
        return 0
    line = error.line
    return place_number(line.layer, line.source, num_slots=layout.num_slots)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A slot that is to be sent."""

    tensors: Mapping[str, Tensor]
    promised: bytes
    """Digest of what was put there. It travels in place of the digest of what lies there now,
    so that no receiver takes anything else for the expert."""
    fault: SourceCorrupt | None


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """One rank's slots, and the book of what they must hold."""

    memory: ExpertMemory
    book: DigestBook
    rank: int
    base: int
    """The rank's first slot among all slots."""

    def source(self, line: Line) -> Source:
        """Return the source slot of a transfer, held against the book."""
        local_slot = line.source - self.base
        tensors = self.memory.slot(line.layer, local_slot)
        promised, found = self.book.slot(line.layer, local_slot), self.memory.digest(tensors)
        fault = None
        if found != promised:
            fault = SourceCorrupt(line, rank=self.rank, local_slot=local_slot, found=found)
        return Source(tensors, promised, fault)
