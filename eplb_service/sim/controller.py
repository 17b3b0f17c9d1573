"""A controller: the real wave machine, and as little glue as it can run with.

The glue gives numbers, believes the highest incarnation that said Hello, ends the
open wave when a new group has told what it serves, and starts a wave only when the
last one is over. Effects wait in a list and are performed one at a time, so that a
crash can fall between any two of them.
"""

from collections import deque
from collections.abc import Callable
from random import Random

from eplb_service.domain.errors import StoreConflict
from eplb_service.domain.ids import Epoch, Incarnation, Revision
from eplb_service.domain.shares import ShareName
from eplb_service.domain.wave import Order
from eplb_service.protocol import wave as machine
from eplb_service.protocol.messages import (
    Abort,
    Accepted,
    Arm,
    Armed,
    CutOver,
    Dropped,
    Halted,
    Hello,
    Idle,
    Nack,
    Resume,
    SharesApplied,
    Staged,
    ToMachine,
    Word,
)
from eplb_service.protocol.wave_state import (
    Effect,
    Event,
    GiveUp,
    Greeted,
    GroupRestarted,
    Heard,
    Nudge,
    Record,
    Recorded,
    Said,
    SendAbort,
    SendArm,
    SendOrder,
    WavePhase,
    WaveState,
    WordsDiffer,
)
from eplb_service.sim.beliefs import Beliefs
from eplb_service.sim.share_loop import ShareLoop
from eplb_service.sim.store import SimStore, WaveRecord
from eplb_service.sim.story import Violation
from eplb_service.sim.waves import Deployment, rows_of, shares_digest, shares_of

Post = Callable[[int, ToMachine], None]


class SimController:
    """One controller process, from its take-over to its end."""

    def __init__(self, number: int, deployment: Deployment, store: SimStore, post: Post) -> None:
        self.number = number
        self.deployment = deployment
        self.is_alive = True
        self.generation = store.take_over()
        self.beliefs = Beliefs(deployment.num_ranks, store.incarnation)
        self.record = store.records[max(store.records)] if store.records else None
        self.wave = recovered(self.record, deployment.num_ranks) if self.record else None
        self.shares: ShareLoop | None = None
        self.patience = 0
        self._todo: deque[Effect] = deque()
        self._resuming: int | None = None
        self._store = store
        self._post = post

    @property
    def may_start(self) -> bool:
        """Whether the last wave is over, on record, and the group is heard and well."""
        beliefs = self.beliefs
        is_over = self.wave is None or self.wave.is_over
        is_well = beliefs.common_epoch is not None and beliefs.halt_number is None
        return self.is_alive and is_over and is_well and not self._todo

    @property
    def has_todo(self) -> bool:
        """Whether effects wait to be performed."""
        return bool(self._todo)

    def receive(self, rank: int, incarnation: Incarnation, word: Hello | Word) -> None:
        """Take a word that came on the stream of a rank of some incarnation."""
        if isinstance(word, Hello):
            self._guarded(lambda: self._greet(rank, word))
        elif incarnation == self.beliefs.incarnation:
            self._hear(rank, word)

    def start(self, record: WaveRecord) -> None:
        """Spend the number of a wave, and send its orders."""
        self._guarded(lambda: self._store.spend(self.generation, record))
        if self.is_alive:
            self.record = record
            self.wave, effects = machine.spent(
                record.wave,
                incarnation=record.incarnation,
                expires_at_step=record.expires_at_step,
                num_ranks=self.deployment.num_ranks,
            )
            self._todo.extend(effects)

    def share(self, rng: Random, *, again: bool = False) -> ShareName | None:
        """Spend a revision for the epoch that is served, and send it; its name if it was."""
        epoch = self.beliefs.common_epoch
        if epoch is None or self.beliefs.halt_number is not None:
            return None
        revision = self._spend_revision(again=again)
        if revision is None:
            return None
        placement = self._store.stands[epoch].placement
        shares = shares_of(placement, self.deployment.ownership, rng)
        name = ShareName(epoch, placement.digest(), revision, shares_digest(shares))
        self.shares = ShareLoop(name, shares, self.deployment.num_ranks)
        self._say_shares()
        return name

    def give_up(self, reason: str) -> None:
        """End the wave if it still may be."""
        self._advance(GiveUp(reason))

    def resume(self) -> None:
        """Clear the halt that is known to stand."""
        self._resuming = self.beliefs.halt_number
        self._say_resume()

    def nudge(self) -> None:
        """Time passed: say again what was not answered; the deadline stands still while idle."""
        if not self.beliefs.idle:
            self.patience -= 1
            if self.patience == 0:
                self.give_up("deadline passed")
        if self.wave and not self.wave.is_over:
            self._advance(Nudge())
        self._say_shares()
        self._say_resume()

    def perform(self) -> Effect | None:
        """Do the next thing that the wave machine asked for."""
        record = self.record
        if not self._todo or record is None:
            return None
        effect = self._todo.popleft()
        wave, generation, incarnation = record.wave, self.generation, record.incarnation
        match effect:
            case Record(phase, _):
                self._guarded(lambda: self._write(wave.epoch, phase))
            case SendOrder(rank):
                self._post(rank, self._order(record, rank))
            case SendArm(rank):
                self._post(rank, Arm(generation, incarnation, wave))
            case SendAbort(rank):
                self._post(rank, Abort(generation, incarnation, wave))
            case WordsDiffer(text):
                raise Violation(f"words differ: {text}")
        return effect

    # ---- glue -----------------------------------------------------------------

    def _spend_revision(self, *, again: bool) -> Revision | None:
        """Spend one that no rank has told to use, unless `again` clashes on purpose."""
        try:
            revision = self._store.spend_revision(self.generation, again=again)
            while revision <= self.beliefs.revision and not again:
                revision = self._store.spend_revision(self.generation, again=False)
        except StoreConflict:
            self.is_alive = False
            return None
        return revision

    def _guarded(self, write: Callable[[], object]) -> None:
        try:
            write()
        except StoreConflict:
            self.is_alive = False

    def _write(self, epoch: Epoch, phase: WavePhase) -> None:
        self._store.write(self.generation, epoch, phase)
        self._advance(Recorded(phase))

    def _order(self, record: WaveRecord, rank: int) -> Order:
        content = record.content
        return Order(
            epoch=record.wave.epoch,
            generation=self.generation,
            incarnation=record.incarnation,
            expires_at_step=record.expires_at_step,
            content=content,
            dispatch=rows_of(record.after.shares, rank, content.layers),
        )

    def _advance(self, event: Event) -> None:
        if self.wave is not None and self.is_alive:
            self.wave, effects = machine.step(self.wave, event)
            self._todo.extend(effects)

    def _greet(self, rank: int, hello: Hello) -> None:
        incarnation, wave = hello.incarnation, self.wave
        if incarnation < self.beliefs.incarnation:
            return
        if incarnation > self.beliefs.incarnation:
            self._store.see_incarnation(self.generation, incarnation)
            self.beliefs = Beliefs(self.deployment.num_ranks, incarnation)
            self.shares = self._resuming = None
        self.beliefs.greet(rank, hello.status)
        if wave is None:
            return
        if wave.incarnation == incarnation:
            self._advance(Greeted(rank, hello.status))
        elif not wave.is_over and self.beliefs.common_epoch is not None:
            self._advance(GroupRestarted(self.beliefs.common_epoch))

    def _hear(self, rank: int, word: Word) -> None:
        beliefs = self.beliefs
        match word:
            case Accepted() | Nack() | Staged() | Armed() | CutOver() | Dropped():
                if isinstance(word, CutOver):
                    beliefs.serve(rank, word.wave.epoch)
                if self.wave and self.wave.incarnation == beliefs.incarnation:
                    self._advance(Said(rank, word))
            case Halted(halt, step):
                beliefs.halt(rank, step, halt)
            case Idle(is_idle, step):
                beliefs.rest(rank, is_idle=is_idle)
                beliefs.tick(step)
            case SharesApplied(name, _):
                beliefs.revise(name.revision)
                if self.shares:
                    self.shares.hear(rank, name)

    def _say_shares(self) -> None:
        if self.shares and self.shares.name.epoch == self.beliefs.common_epoch:
            words = self.shares.words(self.generation, self.beliefs.incarnation)
            for rank, word in words.items():
                self._post(rank, word)

    def _say_resume(self) -> None:
        if self._resuming is not None and self._resuming == self.beliefs.halt_number:
            word = Resume(self.generation, self.beliefs.incarnation, self._resuming)
            for rank in range(self.deployment.num_ranks):
                self._post(rank, word)


def recovered(record: WaveRecord, num_ranks: int) -> WaveState:
    """Take a wave up from its record: who said what is asked again."""
    return WaveState(
        wave=record.wave,
        incarnation=record.incarnation,
        expires_at_step=record.expires_at_step,
        phase=record.phase,
        heard=(Heard.NOTHING,) * num_ranks,
        reason="",
        step=0,
    )
