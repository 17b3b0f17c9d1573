"""The store of a cluster: one Redis server that several nodes reach.

Reads and decisions happen here, by the same judges as for a file; the write compares
generation and version at the server and is done whole or not at all. See redis_ledger for
what is kept where.
"""

from collections.abc import Callable, Sequence
from typing import cast

from eplb_service.controller.records import (
    DeploymentRecord,
    DrainNote,
    EpochEnd,
    EpochRecord,
    FreezeNote,
    HistoryEntry,
    Note,
    Recovered,
    SettingsNote,
)
from eplb_service.domain.ids import Epoch, Generation, Revision
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store import redis_ledger as ledgers
from eplb_service.store.codec import encode
from eplb_service.store.judge import (
    is_progress,
    is_spent_again,
    require_leader,
    require_new_epoch,
    require_new_revision,
    require_newer_incarnation,
    require_still_newest,
    start_is_news,
)
from eplb_service.store.redis_archive import LEADING, RedisBeats, RedisBook
from eplb_service.store.redis_ledger import (
    BEATS,
    FENCE,
    FREEZE,
    NAMES,
    RANKS,
    SERVED,
    Ledger,
    Line,
)
from eplb_service.store.redis_wire import Command, Wire

Decide = Callable[[Ledger], Sequence[Command]]
"""What to write; nothing where it is written already. Raises the judges' errors."""


class RedisStore(RedisBook):
    """Both sides; connects at the first call, and again after a failure."""

    def __init__(self, url: str, *, deadline_s: float = 5.0) -> None:
        super().__init__(url, deadline_s=deadline_s)
        self.beats = RedisBeats(self._wire)

    async def acquire(self, after: Generation | None = None) -> Generation:
        """Take the next generation and fence every lower one."""

        def work() -> Generation | None:
            newest = ledgers.pulse(self._wire).generation
            require_still_newest(acquired=newest, after=after)
            is_next = self._wire.lead(LEADING, newest, (("INCR", FENCE), ("SET", BEATS, 0)))
            return Generation(newest + 1) if is_next else None

        return await self._wire.run("acquire the next generation", work)

    async def deployments(self) -> tuple[str, ...]:
        """Names of all deployments on record."""

        def work() -> tuple[str, ...]:
            names = cast("list[bytes]", self._wire.ask("SMEMBERS", NAMES))
            return tuple(sorted(name.decode() for name in names))

        return await self._wire.run("list the deployments", work, is_reading=True)

    async def recover(self, deployment: str) -> Recovered | None:
        """Everything known of one deployment; None where nothing is."""

        def work() -> tuple[Recovered | None] | None:
            ledger = ledgers.read(self._wire, deployment)
            found = _recover(self._wire, ledger)
            # The records were read after the rest: what was written in between tears them apart.
            is_whole = ledgers.read(self._wire, deployment).version == ledger.version
            return (found,) if is_whole else None

        (found,) = await self._wire.run(f"recover {deployment}", work, is_reading=True)
        return found

    async def register(
        self, generation: Generation, record: DeploymentRecord, first: EpochRecord
    ) -> None:
        """Write a deployment down, or its newer incarnation; see SqliteStore.register."""
        name = record.identity.name
        what = f"register {name}"

        def decide(ledger: Ledger) -> Sequence[Command]:
            return _register(self._wire, ledger, record, first)

        await self._write(generation, name, what, decide)

    async def spend(self, generation: Generation, deployment: str, record: EpochRecord) -> None:
        """Spend the epoch's number; the same wave twice is one.

        StoreConflict if the number is not above all spent ones.
        """
        number = record.wave.epoch

        def decide(ledger: Ledger) -> Sequence[Command]:
            ledger.require_registered()
            line = ledger.lines.get(number)
            before = ledgers.body(self._wire, deployment, number) if line else None
            if before and line and is_spent_again(record, before=before, phase=line.end.phase):
                return ()
            require_new_epoch(deployment=deployment, spent=ledger.highest, number=number)
            spent = ledgers.spend(ledger, record, WavePhase.SPENT)
            return (*spent, *ledgers.forget_aborted(ledger))

        await self._write(generation, deployment, f"spend epoch {number} of {deployment}", decide)

    async def end(self, generation: Generation, deployment: str, end: EpochEnd) -> None:
        """Record how far an epoch came; the same end twice is one."""

        def decide(ledger: Ledger) -> Sequence[Command]:
            line = ledgers.line_of(self._wire, ledger, end.epoch)
            if not is_progress(epoch=end.epoch, before=line.end.phase, after=end.phase):
                return ()
            written = ledgers.set_line(ledger.keys, Line(end, line.revision, line.is_kept))
            is_settled = end.phase is WavePhase.SETTLED
            return (written, *(ledgers.forget_old(ledger, end.epoch) if is_settled else ()))

        what = f"record epoch {end.epoch} of {deployment} as {end.phase}"
        await self._write(generation, deployment, what, decide)

    async def spend_revision(
        self, generation: Generation, deployment: str, epoch: Epoch, revision: Revision
    ) -> None:
        """Spend a share revision's number; StoreConflict if it is not above all spent ones."""

        def decide(ledger: Ledger) -> Sequence[Command]:
            line = ledgers.line_of(self._wire, ledger, epoch)
            require_new_revision(epoch=epoch, spent=line.revision, number=revision)
            return (ledgers.set_line(ledger.keys, Line(line.end, revision, line.is_kept)),)

        what = f"spend revision {revision} of epoch {epoch} of {deployment}"
        await self._write(generation, deployment, what, decide)

    async def keep(self, generation: Generation, deployment: str, note: Note) -> None:
        """Write an operator's act."""

        def decide(ledger: Ledger) -> Sequence[Command]:
            ledger.require_registered()
            head = ledger.keys.head
            match note:
                case FreezeNote(freeze):
                    if freeze is None:
                        return (("HDEL", head, "freeze"),)
                    return (("HSET", head, "freeze", FREEZE.dump_json(freeze)),)
                case SettingsNote(settings):
                    return (("HSET", head, "settings", settings),)
                case DrainNote(ranks):
                    return (("HSET", head, "drained", RANKS.dump_json(ranks)),)
                case HistoryEntry():
                    return ledgers.add_history(ledger.keys, note)

        what = f"keep a {type(note).__name__} of {deployment}"
        await self._write(generation, deployment, what, decide)

    async def _write(
        self, generation: Generation, deployment: str, what: str, decide: Decide
    ) -> None:
        def work() -> bool | None:
            ledger = ledgers.read(self._wire, deployment)
            require_leader(acquired=ledger.generation, writer=generation)
            commands = decide(ledger)
            guard = (generation, ledger.version)
            if not commands or self._wire.write(ledger.keys.all, guard, commands):
                return True
            return None

        await self._wire.run(what, work)


def _settled(wire: Wire, ledger: Ledger) -> EpochRecord | None:
    number = ledger.newest(*SERVED, after=ledger.start_after)
    return ledger.start if number is None else ledgers.body(wire, ledger.keys.name, number)


def _register(
    wire: Wire, ledger: Ledger, record: DeploymentRecord, first: EpochRecord
) -> Sequence[Command]:
    known, keys, number = ledger.record, ledger.keys, first.wave.epoch
    if known is not None:
        require_newer_incarnation(
            deployment=keys.name, known=known.incarnation, incarnation=record.incarnation
        )
    written = ledgers.set_record(keys, record)
    if number > ledger.highest:
        return (*written, *ledgers.spend(ledger, first, WavePhase.SETTLED))
    written += ledgers.number_alone(wire, ledger, first)
    settled = _settled(wire, ledger)
    if settled is not None and start_is_news(first, settled):
        written.append(("HSET", keys.head, "start", encode(first), "start_after", ledger.highest))
    return written


def _recover(wire: Wire, ledger: Ledger) -> Recovered | None:
    record, settled = ledger.record, _settled(wire, ledger)
    if record is None or settled is None:
        return None
    last = ledger.newest(*WavePhase, after=ledger.start_after)
    is_open = last is not None and ledger.lines[last].end.phase is not WavePhase.SETTLED
    return Recovered(
        record=record,
        settled=settled,
        open_epoch=ledgers.body(wire, ledger.keys.name, last) if last and is_open else None,
        open_end=ledger.lines[last].end if last and is_open else None,
        highest_epoch=ledger.highest,
        highest_revision=ledgers.line_of(wire, ledger, settled.wave.epoch).revision,
        freeze=ledger.freeze,
        settings=ledger.head.get("settings", b"{}").decode(),
        drained=ledger.drained,
    )
