"""One slot's digest at a time, for ever: what rots in memory is found while nothing moves."""

from worker_agent.adapters.memory import DigestBook, ExpertMemory

Slot = tuple[int, int]
"""Layer and local slot."""


class SlowAudit:
    """Goes round all filled slots; each look reads one expert's bytes and no more.

    Looks run beside the step's thread, which may be writing that very slot at a switch. So a
    slot is wrong only if the look after it, which the step's thread asks for once its switch
    is over and in the book, finds it wrong again, and the book still says the same of it.
    """

    def __init__(self, book: DigestBook) -> None:
        self._book = book
        self._last: Slot = (-1, -1)
        self._suspect: tuple[Slot, bytes] | None = None
        self._told: set[tuple[Slot, bytes]] = set()

    def look(self, memory: ExpertMemory) -> Slot | None:
        """Look at the next slot; returns it if it is found wrong, once for each wrong digest."""
        expected = self._book.slots()
        if not expected:
            return None
        again = self._suspect
        slot = again[0] if again and again[0] in expected else self._next(expected)
        found = memory.digest(memory.slot(*slot))
        is_wrong, self._suspect = found != expected[slot], None
        if not is_wrong or (slot, found) in self._told:
            return None
        if again != (slot, expected[slot]):
            self._suspect = (slot, expected[slot])
            return None
        self._told.add((slot, found))
        return slot

    def _next(self, expected: dict[Slot, bytes]) -> Slot:
        later = [slot for slot in expected if slot > self._last]
        self._last = min(later or expected)
        return self._last
