"""What a rank looks at while nothing moves: one slot and one map at a time, for ever."""

from collections.abc import Sequence

from eplb_service.domain.detours import place_number
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.protocol.rank_state import RaiseHalt
from worker_agent.adapters.map_audit import MapAudit
from worker_agent.adapters.memory import DigestBook, ExpertMemory
from worker_agent.adapters.slow_audit import SlowAudit
from worker_agent.ports.weights import TableStale


class Watch:
    """Names what it finds by rank, layer, slot and expert."""

    def __init__(self, book: DigestBook, layout: SlotLayout, rank: int) -> None:
        self._book = book
        self._slots = SlowAudit(book)
        self._maps = MapAudit(layout, rank)
        self._layout = layout
        self._rank = rank

    def take_stock(self, memory: ExpertMemory, filled: Sequence[tuple[int, int]]) -> None:
        """Note what the filled slots, by layer and local slot, hold at the start."""
        for layer, local_slot in filled:
            held = memory.digest(memory.slot(layer, local_slot))
            self._book.note_slot(layer, local_slot, held)

    def wrong_slots(self, memory: ExpertMemory) -> str:
        """Look at every slot; returns which are not what was put there, or an empty text."""
        wrong = [
            (layer, local_slot)
            for (layer, local_slot), expected in self._book.slots().items()
            if memory.digest(memory.slot(layer, local_slot)) != expected
        ]
        if not wrong:
            return ""
        where = f"slots {wrong[:10]} (layer, local slot)"
        return f"rank {self._rank}: {where} are not what was put there"

    def stale_map(
        self, memory: ExpertMemory, placement: Placement, table: IntArray
    ) -> TableStale | None:
        """Look at the next layer's map; table [L, E, J] must be in use."""
        text = self._maps.look(memory, placement, table)
        return None if text is None else TableStale(text)

    def rotten_slot(self, memory: ExpertMemory, placement: Placement) -> RaiseHalt | None:
        """Look at the next slot."""
        wrong = self._slots.look(memory)
        if wrong is None:
            return None
        layer, local_slot = wrong
        slot = self._layout.base(self._rank) + local_slot
        return RaiseHalt(
            f"layer {layer}, local slot {local_slot} of rank {self._rank} does not hold expert "
            f"{int(placement.phy2log[layer, slot])} as it was put there: its digest has changed",
            place_number(layer, slot, num_slots=self._layout.num_slots),
        )
