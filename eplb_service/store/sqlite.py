"""The store of one machine: a SQLite file.

Every write is one IMMEDIATE transaction that looks at the fence first, so that two
controllers on one file cannot both lead. Writes and reads have a thread each, and a
write is durable when it returns.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from eplb_service.controller.records import (
    DeploymentRecord,
    DrainNote,
    EpochEnd,
    EpochRecord,
    FreezeNote,
    HistoryEntry,
    Note,
    Pulse,
    Recovered,
    SettingsNote,
)
from eplb_service.domain.audit import AuditEntry, Happened
from eplb_service.domain.ids import Epoch, Generation, Revision
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store import audits, rows
from eplb_service.store.judge import (
    is_progress,
    is_spent_again,
    require_leader,
    require_new_epoch,
    require_new_revision,
    require_newer_incarnation,
    require_still_newest,
    start_is_news,
    unknown_deployment,
)
from eplb_service.store.lane import READ, WRITE, Lane
from eplb_service.store.schema import connect

Write = Callable[[sqlite3.Connection], None]


class SqliteArchive:
    """The read side of a file.

    deadline_s    longest that any call may take before it raises StoreUnavailable
    """

    def __init__(self, path: Path, *, deadline_s: float = 5.0) -> None:
        opened = partial(connect, path)
        self._reads = Lane(str(path), opened, begin=READ, deadline_s=deadline_s)
        self._lanes = [self._reads]

    async def history(self, deployment: str, limit: int) -> tuple[HistoryEntry, ...]:
        """Newest first."""
        what = f"read the history of {deployment}"
        return await self._reads.run(what, lambda file: rows.history(file, deployment, limit))

    async def epoch(self, deployment: str, epoch: Epoch) -> tuple[EpochRecord, EpochEnd] | None:
        """One spent number and how it ended; None too where its placement is no longer kept."""
        what = f"read epoch {epoch} of {deployment}"
        found = await self._reads.run(what, lambda file: rows.epoch(file, deployment, epoch))
        return (found.record, found.end) if found else None

    async def settled_before(self, deployment: str, epoch: Epoch) -> EpochRecord | None:
        """The newest settled epoch below the given one."""
        what = f"look for a settled epoch of {deployment} before {epoch}"
        found = await self._reads.run(
            what, lambda file: rows.settled_before(file, deployment, epoch)
        )
        return found.record if found else None

    async def audited(self, below: int, limit: int) -> tuple[AuditEntry, ...]:
        """Entries of the audit below a number (0: all), the newest first."""
        return await self._reads.run(
            "read the audit", lambda file: audits.newest_rows(file, below, limit)
        )

    def close(self) -> None:
        """End the threads and close the file."""
        for lane in self._lanes:
            lane.close()


class SqliteBook(SqliteArchive):
    """The read side, and the audit, which every controller writes."""

    def __init__(self, path: Path, *, deadline_s: float = 5.0) -> None:
        super().__init__(path, deadline_s=deadline_s)
        opened = partial(connect, path)
        self._writes = Lane(str(path), opened, begin=WRITE, deadline_s=deadline_s)
        self._lanes.append(self._writes)

    async def audit(self, happened: Happened) -> AuditEntry:
        """Add an entry to the audit; whoever leads, since it also tells who was refused."""
        return await self._writes.run(
            "write the audit", lambda file: audits.add_row(file, happened)
        )


class SqliteBeats:
    """The leader's signs of life, in the fence's row.

    write    writes as a generation, and says what
    """

    def __init__(
        self, reads: Lane, write: Callable[[Generation, str, Write], Awaitable[None]]
    ) -> None:
        self._reads = reads
        self._write = write

    async def give(self, generation: Generation) -> None:
        """Let those that stand by see that this generation still leads."""
        await self._write(generation, "say that it leads", rows.beat)

    async def pulse(self) -> Pulse:
        """Who led last, and how often it has said so."""
        return await self._reads.run("look for a leader", rows.pulse)


class SqliteStore(SqliteBook):
    """Both sides of a file; opened by the first call, and opened again after a failure."""

    def __init__(self, path: Path, *, deadline_s: float = 5.0) -> None:
        super().__init__(path, deadline_s=deadline_s)
        self.beats = SqliteBeats(self._reads, self._write)

    async def acquire(self, after: Generation | None = None) -> Generation:
        """Take the next generation and fence every lower one."""

        def take(file: sqlite3.Connection) -> Generation:
            require_still_newest(acquired=rows.generation(file), after=after)
            return rows.next_generation(file)

        return await self._writes.run("acquire the next generation", take)

    async def deployments(self) -> tuple[str, ...]:
        """Names of all deployments on record."""
        return await self._reads.run("list the deployments", rows.deployment_names)

    async def recover(self, deployment: str) -> Recovered | None:
        """Everything known of one deployment; None where nothing is."""
        return await self._reads.run(
            f"recover {deployment}", lambda file: _recover(file, deployment)
        )

    async def register(
        self, generation: Generation, record: DeploymentRecord, first: EpochRecord
    ) -> None:
        """Write a deployment down, or its newer incarnation.

        `first` is written as a settled epoch where its number is new. Where it is not, the
        group restarted into something older, and is led back, unless its shape is another.
        """
        name = record.identity.name
        await self._write(
            generation, f"register {name}", lambda file: _register(file, record, first)
        )

    async def spend(self, generation: Generation, deployment: str, record: EpochRecord) -> None:
        """Spend the epoch's number; the same wave twice is one.

        StoreConflict if the number is not above all spent ones.
        """

        def write(file: sqlite3.Connection) -> None:
            number = record.wave.epoch
            before = rows.epoch(file, deployment, number)
            if before and is_spent_again(record, before=before.record, phase=before.end.phase):
                return
            require_new_epoch(deployment=deployment, spent=_spent(file, deployment), number=number)
            rows.write_epoch(file, deployment, record, WavePhase.SPENT)
            rows.forget_aborted(file, deployment)

        await self._write(generation, f"spend epoch {record.wave.epoch} of {deployment}", write)

    async def end(self, generation: Generation, deployment: str, end: EpochEnd) -> None:
        """Record how far an epoch came; the same end twice is one."""

        def write(file: sqlite3.Connection) -> None:
            before = rows.phase_of(file, deployment, end.epoch)
            if is_progress(epoch=end.epoch, before=before, after=end.phase):
                rows.write_end(file, deployment, end)

        what = f"record epoch {end.epoch} of {deployment} as {end.phase}"
        await self._write(generation, what, write)

    async def spend_revision(
        self, generation: Generation, deployment: str, epoch: Epoch, revision: Revision
    ) -> None:
        """Spend a share revision's number; StoreConflict if it is not above all spent ones."""

        def write(file: sqlite3.Connection) -> None:
            spent = rows.revision(file, deployment, epoch)
            require_new_revision(epoch=epoch, spent=spent, number=revision)
            rows.write_revision(file, deployment, epoch, revision)

        what = f"spend revision {revision} of epoch {epoch} of {deployment}"
        await self._write(generation, what, write)

    async def keep(self, generation: Generation, deployment: str, note: Note) -> None:
        """Write an operator's act."""

        def write(file: sqlite3.Connection) -> None:
            match note:
                case FreezeNote(freeze):
                    rows.write_freeze(file, deployment, freeze)
                case SettingsNote(settings):
                    rows.write_settings(file, deployment, settings)
                case DrainNote(ranks):
                    rows.write_drained(file, deployment, ranks)
                case HistoryEntry():
                    rows.write_history(file, deployment, note)

        await self._write(generation, f"keep a {type(note).__name__} of {deployment}", write)

    async def _write(self, generation: Generation, what: str, write: Write) -> None:
        def fenced(file: sqlite3.Connection) -> None:
            require_leader(acquired=rows.generation(file), writer=generation)
            write(file)

        await self._writes.run(what, fenced)


def _spent(file: sqlite3.Connection, deployment: str) -> Epoch:
    highest = rows.highest_epoch(file, deployment)
    if highest is None:
        raise unknown_deployment(deployment)
    return highest


def _register(file: sqlite3.Connection, record: DeploymentRecord, first: EpochRecord) -> None:
    name = record.identity.name
    known, highest = rows.deployment(file, name), rows.highest_epoch(file, name)
    if known is not None:
        require_newer_incarnation(
            deployment=name, known=known.record.incarnation, incarnation=record.incarnation
        )
    rows.write_deployment(file, record)
    if known is None or highest is None or first.wave.epoch > highest:
        rows.write_epoch(file, name, first, WavePhase.SETTLED)
        return
    rows.write_number(file, name, first)
    settled = _settled(file, known)
    if settled is not None and start_is_news(first, settled):
        rows.write_start(file, name, first, highest)


def _settled(file: sqlite3.Connection, known: rows.DeploymentRow) -> EpochRecord | None:
    found = rows.last_served(file, known.record.identity.name, after=known.start_after)
    return found.record if found else known.start


def _recover(file: sqlite3.Connection, name: str) -> Recovered | None:
    known, highest = rows.deployment(file, name), rows.highest_epoch(file, name)
    if known is None or highest is None:
        return None
    settled, last = _settled(file, known), rows.last_epoch(file, name, after=known.start_after)
    if settled is None:
        return None
    is_open = last is not None and last.end.phase is not WavePhase.SETTLED
    return Recovered(
        record=known.record,
        settled=settled,
        open_epoch=last.record if last and is_open else None,
        open_end=last.end if last and is_open else None,
        highest_epoch=highest,
        highest_revision=rows.revision(file, name, settled.wave.epoch),
        freeze=known.freeze,
        settings=known.settings,
        drained=known.drained,
    )
