"""What survives a controller: numbers spent, phases recorded, the generation that fences.

A write is durable when the call returns. Closed records stay closed.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from eplb_service.domain.errors import StoreConflict, StoreUnavailable
from eplb_service.domain.ids import Epoch, Generation, Incarnation, Revision
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import ShareName, Shares
from eplb_service.domain.wave import WaveContent
from eplb_service.protocol.messages import WaveName
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.sim.story import Violation
from eplb_service.sim.waves import Deployment, loaded_name, shares_of

NEXT = {
    WavePhase.SPENT: {WavePhase.MAY_COMMIT, WavePhase.ABORTED},
    WavePhase.MAY_COMMIT: {WavePhase.COMMITTED, WavePhase.ABORTED, WavePhase.SETTLED},
    WavePhase.COMMITTED: {WavePhase.SETTLED},
    WavePhase.ABORTED: set[WavePhase](),
    WavePhase.SETTLED: set[WavePhase](),
}


@dataclass(frozen=True, slots=True, eq=False)
class Stand:
    """A placement and the shares of revision 0 beside it."""

    placement: Placement
    shares: Shares


@dataclass(frozen=True, slots=True, eq=False)
class WaveRecord:
    """One number spent, and how far it came."""

    wave: WaveName
    incarnation: Incarnation
    expires_at_step: int
    content: WaveContent
    after: Stand
    phase: WavePhase


class Trouble(StrEnum):
    """What may become of one write."""

    NONE = "none"
    TORN = "torn"
    """It ends half way, and none of it counts: that is what a transaction is."""
    UNHEARD = "unheard"
    """It is durable, but the writer does not hear so and will try again."""


class SimStore:
    """The store of one deployment."""

    def __init__(self, deployment: Deployment) -> None:
        shares = shares_of(deployment.initial, deployment.ownership)
        self.deployment = deployment
        self.trouble: Callable[[], Trouble] = lambda: Trouble.NONE
        """Asked before every write of a wave."""
        self.stands = {Epoch(0): Stand(deployment.initial, shares)}
        self.records: dict[Epoch, WaveRecord] = {}
        self.generation = Generation(0)
        self.incarnation = Incarnation(0)
        self.last_revision = Revision(0)

    def take_over(self) -> Generation:
        """Fence every older controller."""
        self.generation = Generation(self.generation + 1)
        return self.generation

    def see_incarnation(self, generation: Generation, incarnation: Incarnation) -> None:
        """Write down that a newer rank group was heard."""
        self.require_lead(generation)
        self.incarnation = max(self.incarnation, incarnation)

    @property
    def next_epoch(self) -> Epoch:
        """Return the number that spend() would write."""
        return Epoch(max(self.records, default=0) + 1)

    def spend(self, generation: Generation, record: WaveRecord) -> None:
        """Spend the next number, with all that its orders say."""
        self.require_lead(generation)
        epoch = record.wave.epoch
        with self._troubled():
            before = self.records.get(epoch)
            if before is not None and (before.wave, before.phase) != (record.wave, record.phase):
                raise Violation(f"number {epoch} is spent twice")
            self.records[epoch] = record
            self.stands[epoch] = record.after

    def write(self, generation: Generation, epoch: Epoch, phase: WavePhase) -> None:
        """Record a phase."""
        self.require_lead(generation)
        with self._troubled():
            record = self.records[epoch]
            if phase is not record.phase and phase not in NEXT[record.phase]:
                raise Violation(f"epoch {epoch} is {record.phase} on record and would be {phase}")
            self.records[epoch] = replace(record, phase=phase)

    @contextmanager
    def _troubled(self) -> Generator[None]:
        """Around a write: it may be torn, or be done without the writer hearing so."""
        trouble = self.trouble()
        if trouble is Trouble.TORN:
            raise StoreUnavailable("the write was torn; nothing was recorded")
        yield
        if trouble is Trouble.UNHEARD:
            raise StoreUnavailable("no answer; whether it is recorded is not known")

    def spend_revision(self, generation: Generation, *, above: Revision, again: bool) -> Revision:
        """Spend the next revision; `again` gives the last one out a second time."""
        self.require_lead(generation)
        if not again:
            self.last_revision = Revision(max(self.last_revision, above) + 1)
        return self.last_revision

    def settled(self) -> list[Epoch]:
        """Placements that a Welcome may name, the newest last."""
        done = [e for e, r in self.records.items() if r.phase is WavePhase.SETTLED]
        return [Epoch(0), *sorted(done)]

    def name_of(self, epoch: Epoch) -> ShareName:
        """Name of the placement and shares of an epoch, as a group loads them."""
        stand = self.stands[epoch]
        return loaded_name(epoch, stand.placement, stand.shares)

    def require_lead(self, generation: Generation) -> None:
        """Raise StoreConflict if another controller took over; every write asks first."""
        if generation != self.generation:
            raise StoreConflict(
                f"generation {generation} wrote, but generation {self.generation} leads; "
                "nothing was written, the writer steps down"
            )
