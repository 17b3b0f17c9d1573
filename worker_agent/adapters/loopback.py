"""Moving weights between ranks that live in one process: for tests and small trials."""

from collections.abc import Sequence

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.wave import Order
from worker_agent.adapters.memory import DigestBook, ExpertMemory
from worker_agent.adapters.sources import Line, Shelf, lines_of, rows_of
from worker_agent.adapters.weights_thread import RESTAGE_ROW, WeightsThread


class LoopbackMover(WeightsThread):
    """Meets WeightsPort: every rank reads its peers' slots where they lie.

    A peer's slots stay as they are until all ranks are staged, so nobody waits for a sender.
    """

    def __init__(
        self,
        memories: Sequence[ExpertMemory],
        books: Sequence[DigestBook],
        layout: SlotLayout,
        *,
        rank: int,
    ) -> None:
        super().__init__(memories[rank], books[rank], layout, rank=rank)
        self._shelves = [
            Shelf(memory, book, peer, layout.base(peer))
            for peer, (memory, book) in enumerate(zip(memories, books, strict=True))
        ]
        self._ranks = [int(rank) for rank in layout.rank_of_slot()]

    def move(self, order: Order, number: int) -> None:
        """Copy what this rank receives in a round, and verify it."""
        rows = rows_of(order, self.layout, self.rank)
        for line in lines_of(order, number):
            if self._ranks[line.target] == self.rank:
                self._copy(line, rows[line.layer, line.target])

    def _bring(self, line: Line) -> bool:
        """Copy one expert, and verify it."""
        is_mine = self._ranks[line.target] == self.rank
        if is_mine:
            self._copy(line, RESTAGE_ROW)
        return is_mine

    def _copy(self, line: Line, row: int) -> None:
        source = self._shelves[self._ranks[line.source]].source(line)
        staging = self.memory.staging(row)
        for name, tensor in source.tensors.items():
            staging[name].copy_(tensor)
        if source.fault is not None:
            raise source.fault
        self._verify(row, source.promised)
