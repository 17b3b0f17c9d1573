"""The thread on which one rank's weights are moved and checked."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import DropReason, WaveName
from eplb_service.protocol.rank_state import Audited, RaiseHalt, RoundDone, RoundFailed
from worker_agent.adapters.memory import DigestBook, ExpertMemory
from worker_agent.adapters.slow_audit import SlowAudit
from worker_agent.adapters.sources import SourceCorrupt
from worker_agent.ports.weights import WeightsEvent

log = logging.getLogger(__name__)

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
        self._slow_audit = SlowAudit(book)
        self._is_looking = False
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended: SimpleQueue[WeightsEvent] = SimpleQueue()
        self._thread = Thread(target=self._run, name="eplb-weights", daemon=True)

    def start(self, filled: Sequence[tuple[int, int]]) -> None:
        """Start the thread; its first job is to note what the filled slots hold.

        filled    (layer, local slot) of each slot that holds an expert
        """
        self._jobs.put(lambda: self._take_stock(filled))
        self._thread.start()

    def begin_round(self, order: Order, number: int) -> None:
        """Issue the transfers of one round."""
        self._jobs.put(lambda: self._round(order, number))

    def begin_audit(self, halt_number: int) -> None:
        """Check every slot against the book; asked for again while it waits, it is made once."""
        if halt_number not in self._audits:
            self._audits.add(halt_number)
            self._jobs.put(lambda: self._audit(halt_number))

    def begin_look(self, placement: Placement) -> None:
        """Check one more slot; asked for again while it waits, it is made once."""
        if not self._is_looking:
            self._is_looking = True
            self._jobs.put(lambda: self._look(placement))

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

    def verify(self, row: int, sent: bytes) -> None:
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
        text = str(error) or repr(error)
        self._lost = self._lost or text
        return text

    def _round(self, order: Order, number: int) -> WeightsEvent:
        wave = WaveName(order.epoch, order.digest)
        try:
            self.move(order, number)
        except DigestMismatch as error:
            reason, text = DropReason.DIGEST_MISMATCH, str(error)
        except SourceCorrupt as error:
            text = str(error)
            self._ended.put(RoundFailed(wave, number, DropReason.DIGEST_MISMATCH, text))
            return RaiseHalt(text)
        except Exception as error:  # whatever it was, the group must learn that this rank fails
            log.exception("round failed", extra={"epoch": order.epoch, "round": number})
            reason, text = DropReason.TRANSFER_FAILED, self._lose(error)
            self._ended.put(RaiseHalt(text))
        else:
            return RoundDone(wave, number)
        return RoundFailed(wave, number, reason, text)

    def _take_stock(self, filled: Sequence[tuple[int, int]]) -> None:
        for layer, local_slot in filled:
            held = self.memory.digest(self.memory.slot(layer, local_slot))
            self._book.note_slot(layer, local_slot, held)

    def _look(self, placement: Placement) -> RaiseHalt | None:
        try:
            wrong = self._slow_audit.look(self.memory)
        finally:
            self._is_looking = False
        if wrong is None:
            return None
        layer, local_slot = wrong
        expert = int(placement.phy2log[layer, self.layout.base(self.rank) + local_slot])
        return RaiseHalt(
            f"layer {layer}, local slot {local_slot} of rank {self.rank} does not hold expert "
            f"{expert} as it was put there: its digest has changed"
        )

    def _audit(self, halt_number: int) -> Audited:
        self._audits.discard(halt_number)
        wrong = [
            (layer, local_slot)
            for (layer, local_slot), expected in self._book.slots().items()
            if self.memory.digest(self.memory.slot(layer, local_slot)) != expected
        ]
        text = self._lost
        if wrong:
            where = f"slots {wrong[:10]} (layer, local slot)"
            text = f"rank {self.rank}: {where} are not what was put there"
        return Audited(halt_number, is_clean=not text, text=text)
