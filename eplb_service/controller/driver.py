"""The async shell around one deployment's machine: performs effects, keeps the order.

One task feeds the machine, so events of a deployment are handled one after the
other; an effect that must be durable is awaited before any later one is performed.
While the store does not answer nothing moves on here, and serving does not notice.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from eplb_service.clock import Clock
from eplb_service.controller.machine import step
from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    EpochSpent,
    Event,
    Faulted,
    PhaseRecorded,
    PlanEnded,
    RankGreeted,
    RecordPhase,
    Register,
    SendAbortTo,
    SendArmTo,
    SendOrderTo,
    SpendEpoch,
    WaveEnded,
)
from eplb_service.controller.ports import Outbox, Store
from eplb_service.controller.records import DeploymentRecord, EpochRecord
from eplb_service.domain.errors import EplbError, StoreConflict, StoreUnavailable
from eplb_service.domain.ids import Generation
from eplb_service.domain.shares import Shares
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import Abort, Arm, Down, Hello, Welcome

log = logging.getLogger(__name__)

QUEUE_BOUND = 8192
STORE_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often ranks report; told in Welcome."""

    report_every_steps: int
    sent_every_reports: int


@dataclass(frozen=True, slots=True)
class Hooks:
    """Whom the driver tells what happened."""

    on_effect: Callable[[Effect, DeploymentState], None]
    on_fenced: Callable[[StoreConflict], None]


@dataclass(frozen=True, slots=True)
class _Letter:
    event: Event
    outbox: Outbox | None
    done: asyncio.Future[None]


class DeploymentDriver:
    """Drives one deployment; `run` is its task."""

    def __init__(
        self,
        state: DeploymentState,
        *,
        generation: Generation,
        store: Store,
        clock: Clock,
        cadence: Cadence,
        hooks: Hooks,
    ) -> None:
        self.state = state
        self._generation = generation
        self._store = store
        self._clock = clock
        self._cadence = cadence
        self._hooks = hooks
        self._letters: asyncio.Queue[_Letter] = asyncio.Queue(QUEUE_BOUND)
        self._outboxes: dict[int, Outbox] = {}

    async def run(self) -> None:
        """Handle events until cancelled."""
        while True:
            letter = await self._letters.get()
            try:
                await self._handle(letter)
            except StoreConflict as fenced:
                self._fail(letter, fenced)
                self._hooks.on_fenced(fenced)
                return
            except EplbError as refused:
                self._fail(letter, refused)
            else:
                if not letter.done.done():
                    letter.done.set_result(None)

    async def ask(self, event: Event, outbox: Outbox | None = None) -> None:
        """Hand in an event and wait until it and its effects are handled.

        Raises whatever the machine refuses the event with.
        """
        done = asyncio.get_running_loop().create_future()
        await self._letters.put(_Letter(event, outbox, done))
        await done

    def offer(self, event: Event) -> bool:
        """Hand in an event whose loss a later one makes good; False where there was no room."""
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(_collect)
        try:
            self._letters.put_nowait(_Letter(event, None, done))
        except asyncio.QueueFull:
            return False
        return True

    def disconnect(self, rank: int, outbox: Outbox) -> bool:
        """Forget a stream that ended; False if a newer one has taken its place."""
        if self._outboxes.get(rank) is not outbox:
            return False
        del self._outboxes[rank]
        return True

    def tell(self, rank: int, message: Down) -> None:
        """Send a message to a rank if it is connected; it asks again when it comes back."""
        outbox = self._outboxes.get(rank)
        if outbox is not None:
            outbox.send(message)

    def close(self, reason: str) -> None:
        """End every rank's stream."""
        for outbox in tuple(self._outboxes.values()):
            outbox.close(reason)

    @staticmethod
    def _fail(letter: _Letter, error: EplbError) -> None:
        if not letter.done.done():
            letter.done.set_exception(error)

    async def _handle(self, letter: _Letter) -> None:
        self.state, effects = step(self.state, letter.event)
        if isinstance(letter.event, RankGreeted) and letter.outbox is not None:
            self._welcome(letter.event.hello, letter.outbox)
        pending = deque(effects)
        while pending:
            effect = pending.popleft()
            answer = await self._perform(effect)
            self._hooks.on_effect(effect, self.state)
            if answer is not None:
                self.state, more = step(self.state, answer)
                pending.extendleft(reversed(more))

    def _welcome(self, hello: Hello, outbox: Outbox) -> None:
        rank, settled = hello.profile.rank, self.state.settled
        former = self._outboxes.get(rank)
        if former is not None and former is not outbox:
            former.close("a newer stream of this rank took its place")
        self._outboxes[rank] = outbox
        table = settled.shares.table_of(rank)[None]
        outbox.send(
            Welcome(
                generation=self._generation,
                incarnation=hello.incarnation,
                epoch=settled.wave.epoch,
                placement=settled.placement,
                shares=Shares(np.ascontiguousarray(table), settled.shares.ownership),
                report_every_steps=self._cadence.report_every_steps,
                sent_every_reports=self._cadence.sent_every_reports,
            )
        )

    async def _perform(self, effect: Effect) -> Event | None:
        match effect:
            case Register() | SpendEpoch() | RecordPhase():
                return await self._write_down(effect)
            case SendOrderTo(rank, record):
                self.tell(rank, self._order(rank, record))
            case SendArmTo(rank, record):
                self.tell(rank, Arm(self._generation, record.incarnation, record.wave))
            case SendAbortTo(rank, record):
                self.tell(rank, Abort(self._generation, record.incarnation, record.wave))
            case WaveEnded() | PlanEnded() | Faulted():
                pass
        return None

    def _order(self, rank: int, record: EpochRecord) -> Order:
        assert record.content is not None
        return Order(
            epoch=record.wave.epoch,
            generation=self._generation,
            incarnation=record.incarnation,
            expires_at_step=record.expires_at_step,
            content=record.content,
            dispatch=np.ascontiguousarray(record.shares.table_of(rank)[record.content.layers]),
        )

    async def _write_down(self, effect: Register | SpendEpoch | RecordPhase) -> Event | None:
        """Make an effect durable, however long the store takes; nothing may pass it by."""
        attempt = 0
        while True:
            try:
                return await self._write_once(effect)
            except StoreUnavailable as away:
                delay_s = STORE_BACKOFF_S[min(attempt, len(STORE_BACKOFF_S) - 1)]
                attempt += 1
                log.warning(
                    "store did not answer",
                    extra={"error": str(away), "attempt": attempt, "again_in_s": delay_s},
                )
                await asyncio.sleep(delay_s)

    async def _write_once(self, effect: Register | SpendEpoch | RecordPhase) -> Event | None:
        name = self._name()
        match effect:
            case Register(membership, first):
                record = DeploymentRecord(
                    membership.identity,
                    membership.shape,
                    first.shares.ownership,
                    membership.incarnation,
                )
                await self._store.register(self._generation, record, first)
                return None
            case SpendEpoch(record):
                await self._store.spend(self._generation, name, record)
                return EpochSpent(record.wave.epoch)
            case RecordPhase(end):
                end = replace(end, at_s=self._clock.wall_s())
                await self._store.end(self._generation, name, end)
                return PhaseRecorded(end.epoch, end.phase, end.at_s)

    def _name(self) -> str:
        membership = self.state.membership
        assert membership is not None
        return membership.identity.name


def _collect(done: asyncio.Future[None]) -> None:
    """Fetch the exception of an offered event, which nobody waits for."""
    if not done.cancelled() and done.exception() is not None:
        log.info("event refused", extra={"error": str(done.exception())})
