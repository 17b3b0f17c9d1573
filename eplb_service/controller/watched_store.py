"""A store whose calls are counted: whether it answered, and how often it did not."""

from collections.abc import Awaitable
from typing import TypeVar

from eplb_service.controller.auditing import AuditBook
from eplb_service.controller.ports import Recorder, Store
from eplb_service.controller.records import (
    DeploymentRecord,
    EpochEnd,
    EpochRecord,
    Note,
    Pulse,
    Recovered,
)
from eplb_service.domain.audit import AuditEntry, Happened
from eplb_service.domain.errors import StoreUnavailable
from eplb_service.domain.ids import Epoch, Generation, Revision
from eplb_service.domain.metric_names import STORE_CALLS, STORE_UP

T = TypeVar("T")


class StoreWatch:
    """Awaits calls to a store and tells whether it answers; a refusal is an answer.

    Where a write was the last to go unanswered, only another write shows that the store is back: a
    file that another process holds can often still be read.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._is_written = True
        for outcome in ("ok", "failed"):
            recorder.add(STORE_CALLS, (outcome,), 0)

    async def write(self, call: Awaitable[T]) -> T:
        """Return what a call that writes returns, raise what it raises."""
        return await self._watch(call, is_write=True)

    async def read(self, call: Awaitable[T]) -> T:
        """Return what a call that only reads returns, raise what it raises."""
        return await self._watch(call, is_write=False)

    async def _watch(self, call: Awaitable[T], *, is_write: bool) -> T:
        is_answered = True
        try:
            return await call
        except StoreUnavailable:
            is_answered = False
            raise
        finally:
            if is_write:
                self._is_written = is_answered
            self._recorder.set(STORE_UP, (), float(is_answered and self._is_written))
            self._recorder.add(STORE_CALLS, ("ok" if is_answered else "failed",), 1)


class WatchedBook:
    """An audit whose calls are counted."""

    def __init__(self, book: AuditBook, watch: StoreWatch) -> None:
        self._book = book
        self._watch = watch

    async def audit(self, happened: Happened) -> AuditEntry:
        """Add an entry to the chain."""
        return await self._watch.write(self._book.audit(happened))

    async def audited(self, below: int, limit: int) -> tuple[AuditEntry, ...]:
        """Return entries with numbers below one (0: all), the newest first."""
        return await self._watch.read(self._book.audited(below, limit))


class WatchedBeats:
    """Beats whose calls are counted."""

    def __init__(self, store: Store, watch: StoreWatch) -> None:
        self._store = store
        self._watch = watch

    async def give(self, generation: Generation) -> None:
        """Let those that stand by see that this generation still leads."""
        await self._watch.write(self._store.beats.give(generation))

    async def pulse(self) -> Pulse:
        """Who led last, and how often it has said so."""
        return await self._watch.read(self._store.beats.pulse())


class WatchedStore:
    """A ports.Store that hands everything on, its calls counted."""

    def __init__(self, store: Store, watch: StoreWatch) -> None:
        self._store = store
        self._watch = watch
        self.beats = WatchedBeats(store, watch)

    async def acquire(self, after: Generation | None = None) -> Generation:
        """Take the next generation and fence every lower one."""
        return await self._watch.write(self._store.acquire(after))

    async def deployments(self) -> tuple[str, ...]:
        """Names of all deployments on record."""
        return await self._watch.read(self._store.deployments())

    async def recover(self, deployment: str) -> Recovered | None:
        """Everything known of one deployment; None where nothing is."""
        return await self._watch.read(self._store.recover(deployment))

    async def register(
        self, generation: Generation, record: DeploymentRecord, first: EpochRecord
    ) -> None:
        """Write a deployment down, or its newer incarnation."""
        await self._watch.write(self._store.register(generation, record, first))

    async def spend(self, generation: Generation, deployment: str, record: EpochRecord) -> None:
        """Spend the epoch's number."""
        await self._watch.write(self._store.spend(generation, deployment, record))

    async def end(self, generation: Generation, deployment: str, end: EpochEnd) -> None:
        """Record how far an epoch came."""
        await self._watch.write(self._store.end(generation, deployment, end))

    async def spend_revision(
        self, generation: Generation, deployment: str, epoch: Epoch, revision: Revision
    ) -> None:
        """Spend a share revision's number."""
        await self._watch.write(self._store.spend_revision(generation, deployment, epoch, revision))

    async def keep(self, generation: Generation, deployment: str, note: Note) -> None:
        """Write an operator's act."""
        await self._watch.write(self._store.keep(generation, deployment, note))
