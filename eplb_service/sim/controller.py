"""A controller, with as little glue around its machine as it can run with.

The glue believes the highest incarnation that said Hello, says shares and resumes until
they are heard, and steps down when it is fenced. Waves are its desk's.
"""

from collections.abc import Callable
from random import Random

from eplb_service.controller.machine_state import RankGreeted, RankSaid, Ticked
from eplb_service.domain.errors import StoreConflict, StoreUnavailable
from eplb_service.domain.ids import Generation, Incarnation
from eplb_service.protocol.messages import Hello, Resume, SharesApplied, Word
from eplb_service.protocol.wave_state import WaveState
from eplb_service.sim.beliefs import Beliefs
from eplb_service.sim.desk import Desk, Post
from eplb_service.sim.share_loop import ShareLoop, draw_shares
from eplb_service.sim.store import SimStore
from eplb_service.sim.waves import Deployment


class SimController:
    """One controller process, from its take-over to its end."""

    def __init__(
        self,
        number: int,
        deployment: Deployment,
        store: SimStore,
        post: Post,
        sit_down: Callable[[Generation], Desk],
    ) -> None:
        self.number = number
        self.deployment = deployment
        self.is_alive = True
        self.now_s = 0.0
        """Wall clock."""
        self.generation = store.take_over()
        self.beliefs = Beliefs(deployment.num_ranks, store.incarnation)
        self.shares: ShareLoop | None = None
        self.desk = sit_down(self.generation)
        self._resuming: int | None = None
        self._store = store
        self._post = post

    @property
    def wave(self) -> WaveState | None:
        """The last wave that it knows of."""
        return self.desk.wave

    @property
    def may_start(self) -> bool:
        """Whether the last wave is over, on record, and the group is heard and well."""
        is_well = self.beliefs.common_epoch is not None and self.beliefs.halt_number is None
        return self.is_alive and self.desk.is_over and is_well

    @property
    def has_todo(self) -> bool:
        """Whether effects wait to be performed."""
        return self.desk.has_todo

    def receive(self, rank: int, incarnation: Incarnation, word: Hello | Word) -> None:
        """Take a word that came on the stream of a rank of some incarnation."""
        if isinstance(word, Hello):
            self.guarded(lambda: self._greet(rank, word))
        elif incarnation == self.beliefs.incarnation:
            self._hear(rank, word)

    def share(self, rng: Random, *, again: bool = False) -> ShareLoop | None:
        """Spend a revision for the epoch that is served, and send it; None if it may not be."""
        epoch, above = self.beliefs.common_epoch, self.beliefs.revision
        if epoch is None or self.beliefs.halt_number is not None:
            return None
        self.guarded(lambda: self._store.spend_revision(self.generation, above=above, again=again))
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

    def resume(self) -> None:
        """Clear the halt that is known to stand."""
        self._resuming = self.beliefs.halt_number
        self._say_resume()

    def nudge(self) -> None:
        """A second passed: say again what was not answered; deadlines stand still while idle."""
        if not self.beliefs.idle:
            self.now_s += 1.0
            self.desk.tell(Ticked(1.0, self.now_s), self.beliefs)
        self._say_shares()
        self._say_resume()

    def give_up(self, reason: str) -> None:
        """End what runs if it still may be."""
        self.desk.give_up(reason)

    def perform(self) -> object:
        """Do the next thing that the machine asked for; returns it, or what came instead."""
        done: list[object] = []
        try:
            self.guarded(lambda: done.append(self.desk.perform()))
        except StoreUnavailable as away:
            return f"finds the store away: {away}"
        return done[0] if done else "is fenced"

    def guarded(self, write: Callable[[], object]) -> None:
        """Write to the store; one that was fenced ends here."""
        try:
            write()
        except StoreConflict:
            self.is_alive = False

    def _greet(self, rank: int, hello: Hello) -> None:
        incarnation = hello.incarnation
        if incarnation < self.beliefs.incarnation:
            return
        if incarnation > self.beliefs.incarnation:
            self._store.see_incarnation(self.generation, incarnation)
            self.beliefs = Beliefs(self.deployment.num_ranks, incarnation)
            self.shares = self._resuming = None
        self.beliefs.greet(rank, hello.status)
        self.desk.tell(RankGreeted(hello), self.beliefs)

    def _hear(self, rank: int, word: Word) -> None:
        self.beliefs.hear(rank, word)
        if isinstance(word, SharesApplied) and self.shares:
            self.shares.hear(rank, word.shares)
        self.desk.tell(RankSaid(rank, self.beliefs.incarnation, word), self.beliefs)

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
