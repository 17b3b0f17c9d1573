"""One layer's map at a time, for ever: an engine that goes by another map than the one put in use.

Axes    E experts   J dispatch rows   L layers   S local slots
"""

import numpy as np

from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from worker_agent.adapters.memory import ExpertMemory, Maps


class MapAudit:
    """Goes round all layers.

    Looks run beside the step's thread, which may just be changing maps. So a map is stale only if
    two looks in a row, under the same placement and table, find it so.
    """

    def __init__(self, layout: SlotLayout, rank: int) -> None:
        self._own = layout.slots_of(rank)
        self._rank = rank
        self._layer = -1
        self._suspected: tuple[Placement, IntArray] | None = None

    def look(self, memory: ExpertMemory, placement: Placement, table: IntArray) -> str | None:
        """Compare the next layer's map; returns what is wrong with it, or None."""
        again = self._suspected
        is_again = again is not None and again[0] is placement and again[1] is table
        if not is_again:
            self._layer = (self._layer + 1) % placement.num_layers
        text = self._difference(memory.maps(), placement, table)
        self._suspected = (placement, table) if text and not is_again else None
        return text if is_again else None

    def _difference(self, maps: Maps, placement: Placement, table: IntArray) -> str | None:
        layer = self._layer
        wrong = np.argwhere(maps.tables[layer] != table[layer])
        if len(wrong):
            expert, row = (int(part) for part in wrong[0])
            return (
                f"the dispatch table of rank {self._rank} is stale: layer {layer}, row {row} sends "
                f"expert {expert} to slot {maps.tables[layer, expert, row]}, expected slot "
                f"{table[layer, expert, row]}"
            )
        held, wanted = maps.held[layer], placement.phy2log[layer, self._own]
        wrong = np.flatnonzero(held != wanted)
        if len(wrong):
            local_slot = int(wrong[0])
            return (
                f"the slots of rank {self._rank} are accounted for wrongly: layer {layer}, local "
                f"slot {local_slot} is said to hold expert {held[local_slot]}, expected expert "
                f"{wanted[local_slot]}"
            )
        return None
