"""Moving weights between ranks that live in one process: for tests and small trials."""

from collections.abc import Sequence

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.wave import Order
from worker_agent.adapters.memory import DigestBook, ExpertMemory
from worker_agent.adapters.weights_thread import WeightsThread, lines_of, rows_of


class LoopbackMover(WeightsThread):
    """Meets WeightsPort: every rank reads its peers' slots where they lie.

    A peer's slots stay as they are until all ranks are staged, so nobody waits for a sender.
    """

    def __init__(
        self,
        memories: Sequence[ExpertMemory],
        book: DigestBook,
        layout: SlotLayout,
        *,
        rank: int,
    ) -> None:
        super().__init__(memories[rank], book, layout, rank=rank)
        self._memories = memories
        self._ranks = [int(rank) for rank in layout.rank_of_slot()]

    def move(self, order: Order, number: int) -> None:
        """Copy what this rank receives in a round, and verify it."""
        rows = rows_of(order, self.layout, self.rank)
        for layer, _, source, target in lines_of(order, number):
            if self._ranks[target] != self.rank:
                continue
            peer = self._ranks[source]
            tensors = self._memories[peer].slot(layer, source - self.layout.base(peer))
            self.copy(tensors, rows[layer, target])
