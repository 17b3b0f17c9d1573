"""Performing what a deployment's machine asks for: records, and messages to ranks.

A record is durable when its errand returns, however long the store takes; nothing
that comes after it in the machine's effects may pass it by.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

import numpy as np

from eplb_service.clock import Clock
from eplb_service.controller.machine_state import (
    Effect,
    EpochSpent,
    Event,
    Faulted,
    PhaseRecorded,
    PlanEnded,
    PlanStarted,
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
from eplb_service.domain.errors import StoreUnavailable
from eplb_service.domain.ids import Generation
from eplb_service.domain.shares import Shares, even_shares
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import Abort, Arm, Down, Hello, Welcome

log = logging.getLogger(__name__)

STORE_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often ranks report; told in Welcome."""

    report_every_steps: int
    sent_every_reports: int


class Errands:
    """The ways out of one deployment: its store and its ranks' outboxes."""

    def __init__(
        self,
        deployment: str,
        *,
        generation: Generation,
        store: Store,
        clock: Clock,
        cadence: Cadence,
    ) -> None:
        self.deployment = deployment
        self.generation = generation
        self._store = store
        self._clock = clock
        self._cadence = cadence
        self._outboxes: dict[int, Outbox] = {}

    def tell(self, rank: int, message: Down) -> None:
        """Send a message to a rank if it is connected; it asks again when it comes back."""
        outbox = self._outboxes.get(rank)
        if outbox is not None:
            outbox.send(message)

    def is_current(self, rank: int, outbox: Outbox) -> bool:
        """Whether this is the rank's newest stream."""
        return self._outboxes.get(rank) is outbox

    def disconnect(self, rank: int, outbox: Outbox) -> bool:
        """Forget a stream that ended; False if a newer one has taken its place."""
        if self._outboxes.get(rank) is not outbox:
            return False
        del self._outboxes[rank]
        return True

    def close(self, reason: str) -> None:
        """End every rank's stream."""
        for outbox in tuple(self._outboxes.values()):
            outbox.close(reason)

    def welcome(self, hello: Hello, outbox: Outbox, to_load: EpochRecord) -> None:
        """Take a rank's stream in and answer its Hello; an older stream of it is closed."""
        rank = hello.profile.rank
        former = self._outboxes.get(rank)
        if former is not None and former is not outbox:
            former.close("a newer stream of this rank took its place")
        self._outboxes[rank] = outbox
        ownership, shares = hello.profile.ownership, to_load.shares
        if shares.ownership is not ownership:
            shares = even_shares(to_load.placement, ownership)
        table = np.ascontiguousarray(shares.table_of(rank)[None])
        outbox.send(
            Welcome(
                generation=self.generation,
                incarnation=hello.incarnation,
                epoch=to_load.wave.epoch,
                placement=to_load.placement,
                shares=Shares(table, ownership),
                report_every_steps=self._cadence.report_every_steps,
                sent_every_reports=self._cadence.sent_every_reports,
            )
        )

    async def perform(self, effect: Effect) -> Event | None:
        """Do one effect; the answer, if any, goes back to the machine."""
        match effect:
            case Register() | SpendEpoch() | RecordPhase():
                return await self._write_down(effect)
            case SendOrderTo(rank, record):
                self.tell(rank, self._order(rank, record))
            case SendArmTo(rank, record):
                self.tell(rank, Arm(self.generation, record.incarnation, record.wave))
            case SendAbortTo(rank, record):
                self.tell(rank, Abort(self.generation, record.incarnation, record.wave))
            case WaveEnded() | PlanStarted() | PlanEnded() | Faulted():
                pass
        return None

    def _order(self, rank: int, record: EpochRecord) -> Order:
        assert record.content is not None
        return Order(
            epoch=record.wave.epoch,
            generation=self.generation,
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
        match effect:
            case Register(membership, first):
                record = DeploymentRecord(
                    membership.identity,
                    membership.shape,
                    first.shares.ownership,
                    membership.incarnation,
                )
                await self._store.register(self.generation, record, first)
                return None
            case SpendEpoch(record):
                await self._store.spend(self.generation, self.deployment, record)
                return EpochSpent(record.wave.epoch)
            case RecordPhase(end):
                end = replace(end, at_s=self._clock.wall_s())
                await self._store.end(self.generation, self.deployment, end)
                return PhaseRecorded(end.epoch, end.phase, end.at_s)
