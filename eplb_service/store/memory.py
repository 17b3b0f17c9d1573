"""A store that forgets when its process ends; for tests and for trying things out."""

from dataclasses import dataclass, field

from eplb_service.controller.records import (
    DeploymentRecord,
    DrainNote,
    EpochEnd,
    EpochRecord,
    Freeze,
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
from eplb_service.store.audits import AuditChain
from eplb_service.store.judge import (
    HISTORY_KEPT,
    SETTLED_KEPT,
    is_progress,
    is_spent_again,
    require_leader,
    require_new_epoch,
    require_new_revision,
    require_newer_incarnation,
    require_still_newest,
    start_is_news,
    unknown_deployment,
    unknown_epoch,
)


@dataclass(slots=True)
class _Spent:
    """One spent number."""

    record: EpochRecord | None
    """None where it is too old to be kept."""
    end: EpochEnd
    revision: Revision


@dataclass(slots=True)
class _Shelf:
    """One deployment."""

    record: DeploymentRecord
    epochs: dict[Epoch, _Spent] = field(default_factory=dict[Epoch, _Spent])
    history: list[HistoryEntry] = field(default_factory=list[HistoryEntry])
    freeze: Freeze | None = None
    settings: str = "{}"
    drained: tuple[int, ...] = ()
    start: EpochRecord | None = None
    """What a group of another shape restarted into."""
    start_after: int = -1

    def write(self, record: EpochRecord, phase: WavePhase) -> None:
        """Put a spent number down."""
        number = record.wave.epoch
        end = EpochEnd(number, phase, "", 0, record.spent_at_s)
        self.epochs[number] = _Spent(record, end, Revision(0))

    def newest(self, *phases: WavePhase, below: int | None = None) -> _Spent | None:
        """The highest kept epoch in one of the phases."""
        kept = (n for n, s in self.epochs.items() if s.record and s.end.phase in phases)
        found = max((n for n in kept if below is None or n < below), default=None)
        return None if found is None else self.epochs[found]

    def settled(self) -> EpochRecord | None:
        """The last settled or committed record of this shape."""
        found = self.newest(WavePhase.SETTLED, WavePhase.COMMITTED)
        is_of_this_shape = found is not None and found.end.epoch > self.start_after
        return found.record if found and is_of_this_shape else self.start

    def forget_aborted(self) -> None:
        """Drop what was never served and can no longer be open."""
        for number, spent in self.epochs.items():
            if spent.end.phase is WavePhase.ABORTED and number < max(self.epochs):
                spent.record = None

    def forget(self) -> None:
        """Drop placements that are too old to return to."""
        settled = [n for n, s in self.epochs.items() if s.end.phase is WavePhase.SETTLED]
        for oldest_dropped in sorted(settled)[:-SETTLED_KEPT][-1:]:
            for number, spent in self.epochs.items():
                if number <= oldest_dropped:
                    spent.record = None


class MemoryArchive:
    """The read side."""

    def __init__(self) -> None:
        self._shelves: dict[str, _Shelf] = {}
        self._chain = AuditChain()

    async def audited(self, below: int, limit: int) -> tuple[AuditEntry, ...]:
        """Entries of the audit below a number (0: all), the newest first."""
        return self._chain.newest(below, limit)

    async def history(self, deployment: str, limit: int) -> tuple[HistoryEntry, ...]:
        """Newest first."""
        shelf = self._shelves.get(deployment)
        return tuple(shelf.history[::-1][:limit]) if shelf else ()

    async def epoch(self, deployment: str, epoch: Epoch) -> tuple[EpochRecord, EpochEnd] | None:
        """One spent number and how it ended; None too where its placement is no longer kept."""
        shelf = self._shelves.get(deployment)
        spent = shelf.epochs.get(epoch) if shelf else None
        return (spent.record, spent.end) if spent and spent.record else None

    async def settled_before(self, deployment: str, epoch: Epoch) -> EpochRecord | None:
        """The newest settled epoch below the given one."""
        shelf = self._shelves.get(deployment)
        found = shelf.newest(WavePhase.SETTLED, below=epoch) if shelf else None
        return found.record if found else None

    def close(self) -> None:
        """Forget nothing: a closed memory store may be looked at."""


class MemoryBook(MemoryArchive):
    """The read side, and the audit, which every controller writes."""

    async def audit(self, happened: Happened) -> AuditEntry:
        """Add an entry to the audit."""
        return self._chain.add(happened)


class MemoryBeats:
    """The leader's signs of life."""

    def __init__(self) -> None:
        self.last = Pulse(Generation(0), 0)

    async def give(self, generation: Generation) -> None:
        """Let those that stand by see that this generation still leads."""
        require_leader(acquired=self.last.generation, writer=generation)
        self.last = Pulse(generation, self.last.beats + 1)

    async def pulse(self) -> Pulse:
        """Who led last, and how often it has said so."""
        return self.last


class MemoryStore(MemoryBook):
    """Both sides; every controller that shares the object shares the store."""

    def __init__(self) -> None:
        super().__init__()
        self.beats = MemoryBeats()

    @property
    def _generation(self) -> Generation:
        return self.beats.last.generation

    async def acquire(self, after: Generation | None = None) -> Generation:
        """Take the next generation and fence every lower one."""
        require_still_newest(acquired=self._generation, after=after)
        self.beats.last = Pulse(Generation(self._generation + 1), 0)
        return self._generation

    async def deployments(self) -> tuple[str, ...]:
        """Names of all deployments on record."""
        return tuple(sorted(self._shelves))

    async def recover(self, deployment: str) -> Recovered | None:
        """Everything known of one deployment; None where nothing is."""
        shelf = self._shelves.get(deployment)
        if shelf is None:
            return None
        settled, last = shelf.settled(), shelf.newest(*WavePhase)
        if settled is None or last is None:
            return None
        is_open = last.end.phase is not WavePhase.SETTLED and last.end.epoch > shelf.start_after
        return Recovered(
            record=shelf.record,
            settled=settled,
            open_epoch=last.record if is_open else None,
            open_end=last.end if is_open else None,
            highest_epoch=max(shelf.epochs),
            highest_revision=shelf.epochs[settled.wave.epoch].revision,
            freeze=shelf.freeze,
            settings=shelf.settings,
            drained=shelf.drained,
        )

    async def register(
        self, generation: Generation, record: DeploymentRecord, first: EpochRecord
    ) -> None:
        """Write a deployment down, or its newer incarnation."""
        require_leader(acquired=self._generation, writer=generation)
        name = record.identity.name
        shelf = self._shelves.setdefault(name, _Shelf(record))
        require_newer_incarnation(
            deployment=name, known=shelf.record.incarnation, incarnation=record.incarnation
        )
        shelf.record = record
        settled, highest = shelf.settled(), max(shelf.epochs, default=-1)
        number = first.wave.epoch
        if number > highest:
            shelf.write(first, WavePhase.SETTLED)
            return
        end = EpochEnd(number, WavePhase.SETTLED, "", 0, first.spent_at_s)
        shelf.epochs.setdefault(number, _Spent(None, end, Revision(0)))
        if settled is not None and start_is_news(first, settled):
            shelf.start, shelf.start_after = first, highest

    async def spend(self, generation: Generation, deployment: str, record: EpochRecord) -> None:
        """Spend the epoch's number; the same wave twice is one.

        StoreConflict if the number is not above all spent ones.
        """
        shelf = self._fenced(generation, deployment)
        number = record.wave.epoch
        before = shelf.epochs.get(number)
        kept = before.record if before else None
        if before and kept and is_spent_again(record, before=kept, phase=before.end.phase):
            return
        require_new_epoch(deployment=deployment, spent=max(shelf.epochs), number=number)
        shelf.write(record, WavePhase.SPENT)
        shelf.forget_aborted()

    async def end(self, generation: Generation, deployment: str, end: EpochEnd) -> None:
        """Record how far an epoch came; the same end twice is one."""
        spent = self._spent(generation, deployment, end.epoch)
        if is_progress(epoch=end.epoch, before=spent.end.phase, after=end.phase):
            spent.end = end
            self._shelves[deployment].forget()

    async def spend_revision(
        self, generation: Generation, deployment: str, epoch: Epoch, revision: Revision
    ) -> None:
        """Spend a share revision's number; StoreConflict if it is not above all spent ones."""
        spent = self._spent(generation, deployment, epoch)
        require_new_revision(epoch=epoch, spent=spent.revision, number=revision)
        spent.revision = revision

    async def keep(self, generation: Generation, deployment: str, note: Note) -> None:
        """Write an operator's act."""
        shelf = self._fenced(generation, deployment)
        match note:
            case FreezeNote(freeze):
                shelf.freeze = freeze
            case SettingsNote(settings):
                shelf.settings = settings
            case DrainNote(ranks):
                shelf.drained = ranks
            case HistoryEntry():
                shelf.history = [*shelf.history, note][-HISTORY_KEPT:]

    def _fenced(self, generation: Generation, deployment: str) -> _Shelf:
        require_leader(acquired=self._generation, writer=generation)
        if deployment not in self._shelves:
            raise unknown_deployment(deployment)
        return self._shelves[deployment]

    def _spent(self, generation: Generation, deployment: str, epoch: Epoch) -> _Spent:
        spent = self._fenced(generation, deployment).epochs.get(epoch)
        if spent is None:
            raise unknown_epoch(deployment, epoch)
        return spent
