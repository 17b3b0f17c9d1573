"""The mover beside an engine that moves weights itself: only digests travel.

What the sender's book has for an expert is noted for the slot that the engine brings it to, so that
the audits, which read slots against the book, see whether the engine brought it.
"""

from worker_agent.adapters.mover import DIGEST_BYTES, Arrival, RoundUnderWay, TorchMover
from worker_agent.adapters.sources import Line
from worker_agent.adapters.torch_calls import bytes_tensor

__all__ = ["PromiseMover"]


class PromiseMover(TorchMover):
    """Meets WeightsPort for one rank of a group."""

    def _verify(self, row: int, sent: bytes) -> None:
        """Take the sender's word: nothing has come yet that it could be held against."""
        self._book.note_row(row, sent)

    def _bring(self, line: Line) -> bool:
        """Bring nothing: the engine moves experts itself, so the slot stays avoided."""
        del line
        return False

    def _copy(self, line: Line, row: int, under_way: RoundUnderWay) -> None:
        _, digest = self._take(line, under_way)
        under_way.arrivals.append(Arrival(row, digest))

    def _send(self, line: Line, to_rank: int, index: int, under_way: RoundUnderWay) -> None:
        _, digest = self._take(line, under_way)
        under_way.sent.append(digest)
        self._give(digest, to_rank, index, under_way)

    def _receive(self, row: int, from_rank: int, index: int, under_way: RoundUnderWay) -> None:
        digest = bytes_tensor(bytes(DIGEST_BYTES))
        self._await(digest, from_rank, index, under_way)
        under_way.arrivals.append(Arrival(row, digest))
