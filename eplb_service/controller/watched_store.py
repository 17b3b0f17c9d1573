"""A store whose calls are counted: whether it answered, and how often it did not."""

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from eplb_service.controller.ports import Recorder, Store
from eplb_service.controller.records import (
    DeploymentRecord,
    EpochEnd,
    EpochRecord,
    Note,
    Pulse,
    Recovered,
)
from eplb_service.domain.errors import StoreUnavailable
from eplb_service.domain.ids import Epoch, Generation, Revision
from eplb_service.domain.metric_names import STORE_CALLS, STORE_UP

T = TypeVar("T")


class Watch(Protocol):
    """Awaits one call and counts it."""

    async def __call__(self, call: Awaitable[T]) -> T:
        """Return what it returns, raise what it raises."""
        ...


class WatchedBeats:
    """Beats whose calls are counted."""

    def __init__(self, store: Store, watch: Watch) -> None:
        self._store = store
        self._watch = watch

    async def give(self, generation: Generation) -> None:
        """Let those that stand by see that this generation still leads."""
        await self._watch(self._store.beats.give(generation))

    async def pulse(self) -> Pulse:
        """Who led last, and how often it has said so."""
        return await self._watch(self._store.beats.pulse())


class WatchedStore:
    """A ports.Store that hands everything on; a refusal is an answer, a silence is none."""

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        for outcome in ("ok", "failed"):
            recorder.add(STORE_CALLS, (outcome,), 0)
        self.beats = WatchedBeats(store, self._watch)

    async def acquire(self, after: Generation | None = None) -> Generation:
        """Take the next generation and fence every lower one."""
        return await self._watch(self._store.acquire(after))

    async def deployments(self) -> tuple[str, ...]:
        """Names of all deployments on record."""
        return await self._watch(self._store.deployments())

    async def recover(self, deployment: str) -> Recovered | None:
        """Everything known of one deployment; None where nothing is."""
        return await self._watch(self._store.recover(deployment))

    async def register(
        self, generation: Generation, record: DeploymentRecord, first: EpochRecord
    ) -> None:
        """Write a deployment down, or its newer incarnation."""
        await self._watch(self._store.register(generation, record, first))

    async def spend(self, generation: Generation, deployment: str, record: EpochRecord) -> None:
        """Spend the epoch's number."""
        await self._watch(self._store.spend(generation, deployment, record))

    async def end(self, generation: Generation, deployment: str, end: EpochEnd) -> None:
        """Record how far an epoch came."""
        await self._watch(self._store.end(generation, deployment, end))

    async def spend_revision(
        self, generation: Generation, deployment: str, epoch: Epoch, revision: Revision
    ) -> None:
        """Spend a share revision's number."""
        await self._watch(self._store.spend_revision(generation, deployment, epoch, revision))

    async def keep(self, generation: Generation, deployment: str, note: Note) -> None:
        """Write an operator's act."""
        await self._watch(self._store.keep(generation, deployment, note))

    async def _watch(self, call: Awaitable[T]) -> T:
        is_answered = True
        try:
            return await call
        except StoreUnavailable:
            is_answered = False
            raise
        finally:
            self._recorder.set(STORE_UP, (), float(is_answered))
            self._recorder.add(STORE_CALLS, ("ok" if is_answered else "failed",), 1)
