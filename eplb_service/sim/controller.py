"""A controller, with as little glue around the wave machine as it can run with.

The glue gives numbers, believes the highest incarnation that said Hello, ends the
open wave when a new group has told what it serves, and starts a wave only when the
last one is over.
"""

from collections.abc import Callable
from random import Random

from eplb_service.domain.errors import StoreConflict
from eplb_service.domain.ids import Incarnation
from eplb_service.protocol.messages import Halted, Hello, Idle, Resume, SharesApplied, Word
from eplb_service.protocol.wave_state import (
    Effect,
    GiveUp,
    Greeted,
    GroupRestarted,
    Nudge,
    Said,
    WaveState,
)
from eplb_service.sim.beliefs import Beliefs
from eplb_service.sim.share_loop import ShareLoop, draw_shares
from eplb_service.sim.store import SimStore, WaveRecord
from eplb_service.sim.wave_desk import Post, WaveDesk
from eplb_service.sim.waves import Deployment


class SimController:
    """One controller process, from its take-over to its end."""

    def __init__(self, number: int, deployment: Deployment, store: SimStore, post: Post) -> None:
        self.number = number
        self.deployment = deployment
        self.is_alive = True
        self.generation = store.take_over()
        self.beliefs = Beliefs(deployment.num_ranks, store.incarnation)
        self.shares: ShareLoop | None = None
        self.patience = 0
        """Nudges until the deadline of the wave."""
        self._desk = WaveDesk(self.generation, deployment.num_ranks, store, post)
        self._resuming: int | None = None
        self._store = store
        self._post = post

    @property
    def wave(self) -> WaveState | None:
        """The last wave that it knows of."""
        return self._desk.wave

    @property
    def may_start(self) -> bool:
        """Whether the last wave is over, on record, and the group is heard and well."""
        is_well = self.beliefs.common_epoch is not None and self.beliefs.halt_number is None
        return self.is_alive and self._desk.is_over and is_well

    @property
    def has_todo(self) -> bool:
        """Whether effects wait to be performed."""
        return bool(self._desk.todo)

    def receive(self, rank: int, incarnation: Incarnation, word: Hello | Word) -> None:
        """Take a word that came on the stream of a rank of some incarnation."""
        if isinstance(word, Hello):
            self._guarded(lambda: self._greet(rank, word))
        elif incarnation == self.beliefs.incarnation:
            self._hear(rank, word)

    def start(self, record: WaveRecord) -> None:
        """Spend the number of a wave, and send its orders."""
        self._guarded(lambda: self._desk.start(record))

    def share(self, rng: Random, *, again: bool = False) -> ShareLoop | None:
        """Spend a revision for the epoch that is served, and send it; None if it may not be."""
        epoch, above = self.beliefs.common_epoch, self.beliefs.revision
        if epoch is None or self.beliefs.halt_number is not None:
            return None
        self._guarded(lambda: self._store.spend_revision(self.generation, above=above, again=again))
        if not self.is_alive:
            return None
        self.shares = draw_shares(
            self._store.stands[epoch].placement,
            self.deployment.ownership,
            epoch=epoch,
            revision=self._store.last_revision,
            rng=rng,
        )
        self._say_shares()
        return self.shares

    def give_up(self, reason: str) -> None:
        """End the wave if it still may be."""
        self._desk.advance(GiveUp(reason))

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
            self._desk.advance(Nudge())
        self._say_shares()
        self._say_resume()

    def perform(self) -> Effect | None:
        """Do the next thing that the wave machine asked for; None where nothing waits."""
        done: list[Effect | None] = []
        self._guarded(lambda: done.append(self._desk.perform()))
        return done[0] if done else None

    def _guarded(self, write: Callable[[], object]) -> None:
        """Write to the store; one that was fenced ends here."""
        try:
            write()
        except StoreConflict:
            self.is_alive = False

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
            self._desk.advance(Greeted(rank, hello.status))
        elif not wave.is_over and self.beliefs.common_epoch is not None:
            self._desk.advance(GroupRestarted(self.beliefs.common_epoch))

    def _hear(self, rank: int, word: Word) -> None:
        self.beliefs.hear(rank, word)
        if isinstance(word, SharesApplied):
            if self.shares:
                self.shares.hear(rank, word.shares)
        elif not isinstance(word, Halted | Idle) and self._is_of_this_group:
            self._desk.advance(Said(rank, word))

    @property
    def _is_of_this_group(self) -> bool:
        return self.wave is not None and self.wave.incarnation == self.beliefs.incarnation

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
