"""Cutting one layer's change into parts where it does not fit the staging memory at once.

Axes    P slots   N ranks
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from eplb_service.domain.errors import MisfitPlacement
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import EMPTY, Placement


def receives(before: IntArray, after: IntArray, layout: SlotLayout) -> IntArray:
    """[N] staging rows that each rank needs to go from one row [P] to the next."""
    gets = (before != after) & (after != EMPTY)
    counts = np.bincount(layout.rank_of_slot()[gets], minlength=layout.num_ranks)
    return counts.astype(np.int32)


def cut_layer(old: Placement, new: Placement, layer: int, room: IntArray) -> list[IntArray]:
    """List the rows [P] to go through, the new one last; only that where it fits.

    Slots are settled one after another, each by a change that keeps the layer sound: a
    slot whose expert has another replica is simply given its new one; a slot that holds
    the last replica first lets it go to a slot that is to hold it, and takes that slot's
    expert in exchange until its own turn comes. A part ends where the next change would
    overfill a rank. Raises MisfitPlacement when nothing fits.
    """
    start, goal = old.phy2log[layer], new.phy2log[layer]
    layout = old.layout
    if (receives(start, goal, layout) <= room).all():
        return [goal]
    rows: list[IntArray] = []
    settling = _Settling(start.tolist(), goal.tolist(), layout)
    while settling.row != settling.goal:
        base = list(settling.row)
        settling.advance(room.tolist())
        if settling.row == base:
            wanting = [slot for slot, expert in enumerate(base) if expert != settling.goal[slot]]
            raise MisfitPlacement(
                f"layer {layer} cannot be changed within staging memory of {room.tolist()} "
                f"experts per rank: slots {wanting[:20]} need more; nothing changed"
            )
        rows.append(np.array(settling.row, dtype=np.int32))
    return rows


class _Settling:
    """One layer on its way: the row now, and the row to reach."""

    def __init__(self, row: list[int], goal: list[int], layout: SlotLayout) -> None:
        self.row, self.goal = row, goal
        self._ranks: list[int] = layout.rank_of_slot().tolist()
        self._num_ranks = layout.num_ranks
        self._bases = [layout.base(rank) for rank in range(layout.num_ranks + 1)]
        self._held = Counter(row)
        self._heirs: dict[int, list[int]] = {}
        for slot, expert in enumerate(goal):
            self._heirs.setdefault(expert, []).append(slot)

    def advance(self, room: Sequence[int]) -> None:
        """Make every change that fits one wave from here, with `room` [N] rows per rank."""
        base, used = list(self.row), [0] * self._num_ranks
        pending = [slot for slot, expert in enumerate(self.goal) if self.row[slot] != expert]
        while sum(self._settle(slot, base, used, room) for slot in pending):
            pass
        if self.row == base:
            any(self._settle(slot, base, used, room, even_inward=True) for slot in pending)

    def _settle(
        self,
        slot: int,
        base: Sequence[int],
        used: list[int],
        room: Sequence[int],
        *,
        even_inward: bool = False,
    ) -> bool:
        """Make the slot's change if it fits; return whether it was made.

        A change that leaves on a rank the last replica of an expert whose place is another
        slot of that rank is put off while others can go ahead: two such slots could be
        exchanged only with room for both.
        """
        if self.row[slot] == self.goal[slot]:
            return False
        change = self._change(slot)
        if not even_inward and self._turns_inward(change):
            return False
        return self._make(change, base, used, room)

    def _turns_inward(self, change: Sequence[tuple[int, int]]) -> bool:
        slot, left = change[-1]
        if left in {EMPTY, self.goal[slot]}:
            return False
        heirs = [heir for heir in self._heirs[left] if self.row[heir] != left]
        return all(self._ranks[heir] == self._ranks[slot] for heir in heirs)

    def _make(
        self,
        change: Sequence[tuple[int, int]],
        base: Sequence[int],
        used: list[int],
        room: Sequence[int],
    ) -> bool:
        """Make a change unless it overfills a rank that it uses."""
        needed = Counter[int]()
        for slot, expert in change:
            needs = int(expert not in {EMPTY, base[slot]})
            needed[self._ranks[slot]] += needs - int(self.row[slot] not in {EMPTY, base[slot]})
        if any(n > 0 and used[rank] + n > room[rank] for rank, n in needed.items()):
            return False
        for rank, n in needed.items():
            used[rank] += n
        for slot, expert in change:
            self._held[self.row[slot]] -= 1
            self._held[expert] += 1
            self.row[slot] = expert
        return True

    def _change(self, slot: int) -> Sequence[tuple[int, int]]:
        """Slots and what they get, to settle this slot or the one its expert goes to."""
        held, wanted = self.row[slot], self.goal[slot]
        if held == EMPTY or self._held[held] > 1:
            return ((slot, wanted), *((twin, EMPTY) for twin in self._on_rank(slot, wanted)))
        heirs = [heir for heir in self._heirs[held] if self.row[heir] != held]
        apart = [heir for heir in heirs if self._ranks[heir] != self._ranks[slot]]
        heir = (apart or heirs)[0]
        given = self.row[heir]
        if given == wanted and set(self._on_rank(slot, given)) <= {heir}:
            return ((heir, held), (slot, given))
        is_spare = given == EMPTY or self._held[given] > 1
        return ((heir, held), (slot, EMPTY if is_spare else given))

    def _on_rank(self, slot: int, expert: int) -> list[int]:
        """Other slots of the slot's rank that hold an expert."""
        first, end = self._bases[self._ranks[slot]], self._bases[self._ranks[slot] + 1]
        return [at for at in range(first, end) if at != slot and self.row[at] == expert != EMPTY]
