"""What is read of a Redis server, and what is written there by whoever leads or not."""

from typing import cast

from eplb_service.controller.records import EpochEnd, EpochRecord, HistoryEntry, Pulse
from eplb_service.domain.audit import AuditEntry, Happened
from eplb_service.domain.ids import Epoch, Generation
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store import audits
from eplb_service.store import redis_ledger as ledgers
from eplb_service.store.judge import require_leader
from eplb_service.store.redis_ledger import BEATS, ENTRY, FENCE, Keys
from eplb_service.store.redis_wire import Wire

LEADING = (FENCE, BEATS)


class RedisArchive:
    """The read side.

    deadline_s    longest that any call may take before it raises StoreUnavailable
    """

    def __init__(self, url: str, *, deadline_s: float = 5.0) -> None:
        self._wire = Wire(url, deadline_s=deadline_s)

    async def history(self, deployment: str, limit: int) -> tuple[HistoryEntry, ...]:
        """Newest first."""

        def work() -> tuple[HistoryEntry, ...]:
            if limit < 1:
                return ()
            lines = self._wire.ask("LRANGE", Keys(deployment).history, 0, limit - 1)
            return tuple(ENTRY.validate_json(line) for line in cast("list[bytes]", lines))

        return await self._wire.run(f"read the history of {deployment}", work, is_reading=True)

    async def epoch(self, deployment: str, epoch: Epoch) -> tuple[EpochRecord, EpochEnd] | None:
        """One spent number and how it ended; None too where its placement is no longer kept."""

        def work() -> tuple[tuple[EpochRecord, EpochEnd] | None]:
            line = ledgers.read(self._wire, deployment).lines.get(epoch)
            record = ledgers.body(self._wire, deployment, epoch) if line else None
            return ((record, line.end) if line and record else None,)

        (found,) = await self._wire.run(
            f"read epoch {epoch} of {deployment}", work, is_reading=True
        )
        return found

    async def settled_before(self, deployment: str, epoch: Epoch) -> EpochRecord | None:
        """The newest settled epoch below the given one."""

        def work() -> tuple[EpochRecord | None]:
            ledger = ledgers.read(self._wire, deployment)
            number = ledger.newest(WavePhase.SETTLED, below=epoch)
            return (None if number is None else ledgers.body(self._wire, deployment, number),)

        what = f"look for a settled epoch of {deployment} before {epoch}"
        (found,) = await self._wire.run(what, work, is_reading=True)
        return found

    async def audited(self, below: int, limit: int) -> tuple[AuditEntry, ...]:
        """Entries of the audit below a number (0: all), the newest first."""
        return await self._wire.run(
            "read the audit", lambda: audits.newest_lines(self._wire, below, limit), is_reading=True
        )

    def close(self) -> None:
        """Hang up."""
        self._wire.close()


class RedisBook(RedisArchive):
    """The read side, and the audit, which every controller writes."""

    async def audit(self, happened: Happened) -> AuditEntry:
        """Add an entry to the audit; whoever leads, since it also tells who was refused."""
        return await self._wire.run("write the audit", lambda: audits.push(self._wire, happened))


class RedisBeats:
    """The leader's signs of life."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def give(self, generation: Generation) -> None:
        """Let those that stand by see that this generation still leads."""

        def work() -> bool | None:
            newest = ledgers.pulse(self._wire).generation
            require_leader(acquired=newest, writer=generation)
            return self._wire.lead(LEADING, newest, (("INCR", BEATS),)) or None

        await self._wire.run("say that it leads", work)

    async def pulse(self) -> Pulse:
        """Who led last, and how often it has said so."""
        return await self._wire.run(
            "look for a leader", lambda: ledgers.pulse(self._wire), is_reading=True
        )
