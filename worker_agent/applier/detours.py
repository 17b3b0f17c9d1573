"""Routing around slots that do not hold what they should, and filling them again.

On the step's thread. Every rank does the same at the same agreement; only the rank whose slot is
wrong, and the one that has another replica, move anything.
"""

import logging

from eplb_service.domain.detours import Place, around, others_of, place_of
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from worker_agent.ports.engine import EnginePort
from worker_agent.ports.failures import ExpertCorrupt
from worker_agent.ports.weights import Restage, Restaged, WeightsPort

log = logging.getLogger(__name__)


class Detours:
    """Keeps the table that is in use apart from the one that avoids slots."""

    def __init__(
        self,
        engine: EnginePort,
        weights: WeightsPort,
        table: IntArray,
        *,
        rank: int,
        serves_corrupt: bool,
    ) -> None:
        """Begin without a detour.

        table             [L, E, J] this rank's dispatch table
        serves_corrupt    whether to serve on by a wrong slot whose expert is nowhere else
        """
        self._engine = engine
        self._weights = weights
        self._rank = rank
        self._serves_corrupt = serves_corrupt
        self._ordered = table
        """[L, E, J] what was ordered last."""
        self.used = table
        """[L, E, J] what the engine must go by; another array for every change."""

    def order(self, table: IntArray) -> None:
        """Put an ordered table [L, E, J] in use."""
        self._engine.apply_table(table)
        self.ordered(table)

    def ordered(self, table: IntArray) -> None:
        """Note the table [L, E, J] that a switch has put in use."""
        self._ordered = self.used = table

    def use_again(self) -> None:
        """Put in use what must be in use: the engine went by something else."""
        self._engine.apply_table(self.used)

    def take(self, numbers: tuple[int, ...], placement: Placement) -> None:
        """Avoid slots, by number, the newest last, and have that one filled again.

        Raises ExpertCorrupt where its expert is nowhere else and must not be served.
        """
        num_slots = placement.layout.num_slots
        avoided = [place_of(number, num_slots=num_slots) for number in numbers]
        newest = avoided[-1]
        others = others_of(placement, newest, avoided)
        if not len(others):
            self._without_another(newest, placement)
            return
        self.used = around(self._ordered, placement, avoided)
        self._engine.apply_table(self.used)
        expert = int(placement.phy2log[newest.layer, newest.slot])
        self._weights.begin_restage(
            Restage(newest.layer, expert, source=int(others[0]), target=newest.slot)
        )

    def restore(self, done: Restaged) -> None:
        """Put an expert that was staged again into its slot: nobody sends tokens there now."""
        self._engine.restore(done.layer, done.local_slot, done.row)
        log.info(
            "slot filled again",
            extra={"rank": self._rank, "layer": done.layer, "local_slot": done.local_slot},
        )

    def back(self) -> None:
        """Use the ordered table again: every slot was found right."""
        self.order(self._ordered)

    def _without_another(self, place: Place, placement: Placement) -> None:
        expert = int(placement.phy2log[place.layer, place.slot])
        where = {
            "layer": place.layer,
            "slot": place.slot,
            "expert": expert,
            "of_rank": owner(placement.layout, place.slot),
        }
        if not self._serves_corrupt:
            raise ExpertCorrupt(rank=self._rank, **where)
        log.error("corrupt expert is served", extra={"rank": self._rank, **where})


def owner(layout: SlotLayout, slot: int) -> int:
    """Return the rank of a slot."""
    return int(layout.rank_of_slot()[slot])
