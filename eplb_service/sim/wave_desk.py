"""The wave in flight at one controller: the real wave machine, and its effects in a list.

Effects are performed one at a time, in order, so that a crash can fall between any two
of them, and so that nothing leaves before the record that it follows is durable.
"""

from collections import deque

from eplb_service.controller.machine_state import Event as DeploymentEvent
from eplb_service.controller.machine_state import RankGreeted, RankSaid, Ticked
from eplb_service.domain.ids import Generation
from eplb_service.domain.wave import Order
from eplb_service.protocol import wave as machine
from eplb_service.protocol.messages import Abort, Arm, Halted, Hello, Idle, SharesApplied
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
    WaveState,
    WordsDiffer,
)
from eplb_service.sim.beliefs import Beliefs
from eplb_service.sim.desk import Post
from eplb_service.sim.store import SimStore, WaveRecord
from eplb_service.sim.story import Violation
from eplb_service.sim.waves import rows_of


class WaveDesk:
    """The last wave that a controller started or took up."""

    def __init__(self, generation: Generation, num_ranks: int, store: SimStore, post: Post) -> None:
        self.record = store.records[max(store.records)] if store.records else None
        self.wave = recovered(self.record, num_ranks) if self.record else None
        self.todo: deque[Effect] = deque()
        self._patience = 0
        self._num_ranks = num_ranks
        self._generation = generation
        self._store = store
        self._post = post

    @property
    def is_over(self) -> bool:
        """Whether the last wave is over, and on record as such."""
        return (self.wave is None or self.wave.is_over) and not self.todo

    @property
    def has_todo(self) -> bool:
        """Whether effects wait to be performed."""
        return bool(self.todo)

    def start(self, record: WaveRecord) -> None:
        """Spend the number of a wave; its orders are to be sent. Raises StoreConflict."""
        self._store.spend(self._generation, record)
        self.record = record
        self.wave, effects = machine.spent(
            record.wave,
            incarnation=record.incarnation,
            expires_at_step=record.expires_at_step,
            num_ranks=self._num_ranks,
        )
        self.todo.extend(effects)

    def tell(self, event: DeploymentEvent, beliefs: Beliefs) -> None:
        """Take what is about the wave; nothing here rests on streams or reports."""
        match event:
            case RankGreeted(hello):
                self._greet(hello, beliefs)
            case RankSaid(rank, incarnation, word):
                is_of_wave = not isinstance(word, Halted | Idle | SharesApplied)
                if is_of_wave and self.wave and self.wave.incarnation == incarnation:
                    self.advance(Said(rank, word))
            case Ticked(elapsed_s):
                self._tick(elapsed_s)
            case _:
                pass

    def _greet(self, hello: Hello, beliefs: Beliefs) -> None:
        """A wave of an older group ends when all of the new one have told what they serve."""
        wave = self.wave
        if wave is None:
            return
        if wave.incarnation == hello.incarnation:
            self.advance(Greeted(hello.profile.rank, hello.status))
        elif not wave.is_over and beliefs.common_epoch is not None:
            self.advance(GroupRestarted(beliefs.common_epoch))

    def _tick(self, elapsed_s: float) -> None:
        """A second is a nudge: say again what was not answered; the deadline comes nearer."""
        if self._patience > 0:
            self._patience = max(0, self._patience - int(elapsed_s))
            if self._patience == 0:
                self.give_up("deadline passed")
        if self.wave and not self.wave.is_over:
            self.advance(Nudge())

    def be_patient(self, num_nudges: int) -> None:
        """Set the deadline."""
        self._patience = num_nudges

    def give_up(self, reason: str) -> None:
        """End the wave if it still may be."""
        self.advance(GiveUp(reason))

    def advance(self, event: Event) -> None:
        """Step the machine."""
        if self.wave is not None:
            self.wave, effects = machine.step(self.wave, event)
            self.todo.extend(effects)

    def perform(self) -> Effect:
        """Do the next thing that the machine asked for. Raises StoreConflict."""
        record = self.record
        assert record is not None
        effect = self.todo[0]
        wave, generation, incarnation = record.wave, self._generation, record.incarnation
        match effect:
            case Record(phase, _):
                self._store.write(generation, wave.epoch, phase)
                self.advance(Recorded(phase))
            case SendOrder(rank):
                self._post(rank, order_for(record, rank, generation))
            case SendArm(rank):
                self._post(rank, Arm(generation, incarnation, wave))
            case SendAbort(rank):
                self._post(rank, Abort(generation, incarnation, wave))
            case WordsDiffer(text):
                # A halt goes on record first: one that was fenced, and so missed a
                # record, finds out here that it is not the ranks who differ.
                self._store.require_lead(generation)
                raise Violation(f"words differ: {text}")
        self.todo.popleft()
        return effect


def order_for(record: WaveRecord, rank: int, generation: Generation) -> Order:
    """One rank's part of a recorded wave."""
    return Order(
        epoch=record.wave.epoch,
        generation=generation,
        incarnation=record.incarnation,
        expires_at_step=record.expires_at_step,
        content=record.content,
        dispatch=rows_of(record.after.shares, rank, record.content.layers),
    )


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
