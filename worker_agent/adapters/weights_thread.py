"""The thread on which one rank's weights are moved and checked."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import DropReason, WaveName
from eplb_service.protocol.rank_state import Audited, RaiseHalt, RoundDone, RoundFailed
from worker_agent.adapters.memory import DigestBook, ExpertMemory
from worker_agent.adapters.sources import Line, SourceCorrupt, corrupt_slot
from worker_agent.adapters.watch import Watch
from worker_agent.ports.weights import Restage, Restaged, WeightsEvent

log = logging.getLogger(__name__)

RESTAGE_ROW = 0
"""Where an expert is staged again: no order is held then."""
Job = Callable[[], WeightsEvent | None]


class TransferFailed(Exception):
    """A transfer did not complete: a peer is gone or late, and the mover's group is lost."""

    code = "transfer_failed"


class DigestMismatch(Exception):
    """What arrived is not what was sent."""

    code = "digest_mismatch"


class WeightsThread(ABC):
    """Meets WeightsPort; what a round does is the subclass's.

    One thread takes one job after the other, so rounds and audits never run beside each
    other, and the step's thread only puts jobs in and takes results out.
    """

    def __init__(
        self, memory: ExpertMemory, book: DigestBook, layout: SlotLayout, *, rank: int
    ) -> None:
        self.memory = memory
        self.layout = layout
        self.rank = rank
        self._book = book
        self._lost = ""
        """Why nothing can be moved any more, once that is so."""
        self._audits: set[int] = set()
        """Halts whose audit waits its turn."""
        self._watch = Watch(book, layout, rank)
        self._is_looking = False
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended: SimpleQueue[WeightsEvent] = SimpleQueue()
        self._thread = Thread(target=self._run, name="eplb-weights", daemon=True)

    def start(self, filled: Sequence[tuple[int, int]]) -> None:
        """Start the thread; its first job is to note what the filled slots hold.

        filled    (layer, local slot) of each slot that holds an expert
        """
        self._jobs.put(lambda: self._watch.take_stock(self.memory, filled))
        self._thread.start()

    def begin_round(self, order: Order, number: int) -> None:
        """Issue the transfers of one round."""
        self._jobs.put(lambda: self._round(order, number))

    def begin_audit(self, halt_number: int) -> None:
        """Check every slot against the book; asked for again while it waits, it is made once."""
        if halt_number not in self._audits:
            self._audits.add(halt_number)
            self._jobs.put(lambda: self._audit(halt_number))

    def begin_look(self, placement: Placement, table: IntArray) -> None:
        """Check one more slot and map; asked for again while it waits, it is made once."""
        if not self._is_looking:
            self._is_looking = True
            self._jobs.put(lambda: self._look(placement, table))

    def begin_restage(self, restage: Restage) -> None:
        """Bring an expert to a staging row of its slot's rank."""
        self._jobs.put(lambda: self._restage(restage))

    def poll(self) -> WeightsEvent | None:
        """Return what has ended since, or None."""
        try:
            return self._ended.get_nowait()
        except Empty:
            return None

    def close(self, timeout_s: float) -> None:
        """End the thread after the jobs that wait.

        One that waits for a peer that hangs cannot be ended: it is a daemon, and is told of.
        """
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("mover left behind in a round", extra={"rank": self.rank})

    @abstractmethod
    def move(self, order: Order, number: int) -> None:
        """Carry one round to its end, on the mover's thread.

        Raises TransferFailed, SourceCorrupt or DigestMismatch; the last two only after
        everything that the round has this rank send and receive is over.
        """

    @abstractmethod
    def _bring(self, line: Line) -> bool:
        """Carry one expert to staging row RESTAGE_ROW of its target's rank, and verify it there.

        Returns whether that is this rank. Raises as `move` does.
        """

    def _verify(self, row: int, sent: bytes) -> None:
        """Compare a staging row with the sender's digest. Raises DigestMismatch."""
        found = self.memory.digest(self.memory.staging(row))
        if found != sent:
            raise DigestMismatch(
                f"staging row {row} of rank {self.rank} has digest {found.hex()}, but "
                f"{sent.hex()} was sent; the row is not used"
            )
        self._book.note_row(row, found)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                event = job()
            except Exception as error:  # a thread that ends here would leave every wave hanging
                log.exception("weights job failed")
                event = RaiseHalt(self._lose(error))
            if event is not None:
                self._ended.put(event)

    def _lose(self, error: Exception) -> str:
        """Remember why nothing can be moved any more, and return it."""
        self._lost = self._lost or str(error) or repr(error)
        return str(error) or repr(error)

    def _round(self, order: Order, number: int) -> WeightsEvent:
        wave = WaveName(order.epoch, order.digest)
        try:
            self.move(order, number)
        except DigestMismatch as error:
            reason, text = DropReason.DIGEST_MISMATCH, str(error)
        except SourceCorrupt as error:
            self._ended.put(RoundFailed(wave, number, DropReason.DIGEST_MISMATCH, str(error)))
            return RaiseHalt(str(error), corrupt_slot(error, self.layout))
        except Exception as error:  # whatever it was, the group must learn that this rank fails
            log.exception("round failed", extra={"epoch": order.epoch, "round": number})
            reason, text = DropReason.TRANSFER_FAILED, self._lose(error)
            self._ended.put(RaiseHalt(text))
        else:
            return RoundDone(wave, number)
        return RoundFailed(wave, number, reason, text)

    def _look(self, placement: Placement, table: IntArray) -> WeightsEvent | None:
        try:
            stale = self._watch.stale_map(self.memory, placement, table)
            rotten = self._watch.rotten_slot(self.memory, placement)
        finally:
            self._is_looking = False
        if stale is not None:
            self._ended.put(stale)
        return rotten

    def _restage(self, restage: Restage) -> WeightsEvent | None:
        line = Line(restage.layer, restage.expert, restage.source, restage.target)
        try:
            is_mine = self._bring(line)
        except (DigestMismatch, SourceCorrupt) as error:
            return RaiseHalt(str(error), corrupt_slot(error, self.layout))
        local_slot = restage.target - self.layout.base(self.rank)
        return Restaged(restage.layer, local_slot, RESTAGE_ROW) if is_mine else None

    def _audit(self, halt_number: int) -> Audited:
        self._audits.discard(halt_number)
        text = self._watch.wrong_slots(self.memory) or self._lost
        return Audited(halt_number, is_clean=not text, text=text)
