"""The shell around the rank machine, on the step's thread.

Before every step it takes the words that wait, takes what the mover has finished,
and, before every `agree_every`-th step, agrees with the group and does what was
agreed. Beside that one collective nothing here waits for anybody: not for the
agent's thread, the network, the mover or the store.
"""

from dataclasses import dataclass

from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import Placement
from eplb_service.protocol import rank
from eplb_service.protocol.agreement import pack, unpack
from eplb_service.protocol.messages import Word
from eplb_service.protocol.rank_state import (
    Agreed,
    ApplyShares,
    Audit,
    BeginRound,
    Discard,
    Effect,
    Event,
    RaiseHalt,
    RankState,
    RouteAround,
    RouteBack,
    Say,
    Switch,
    ballot,
    status,
)
from worker_agent.applier.desk import Desk, Snapshot
from worker_agent.applier.detours import Detours
from worker_agent.ports.cuts import CutsPort
from worker_agent.ports.engine import EnginePort
from worker_agent.ports.failures import OutOfStep, SwitchFailed
from worker_agent.ports.group import GroupPort
from worker_agent.ports.weights import Restaged, TableStale, WeightsPort

LOOK_EVERY = 32
"""Steps between two slots that the slow audit reads: its cost is one digest in so many steps."""


@dataclass(frozen=True, slots=True, eq=False)
class StepSide:
    """What the applier works with."""

    group: GroupPort
    engine: EnginePort
    weights: WeightsPort
    cuts: CutsPort


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What one rank serves when its first step begins."""

    state: RankState
    placement: Placement
    table: IntArray
    """[L, E, J] this rank's dispatch table, of revision 0."""


class Applier:
    """One rank's machine, fed and obeyed on the step's thread.

    Steps are counted from 0 at the attachment, one for each call of before_step; all
    ranks call it for the same forwards, whatever they bring to them.
    """

    def __init__(
        self,
        start: Start,
        parts: StepSide,
        desk: Desk,
        *,
        agree_every: int,
        serves_corrupt: bool = False,
    ) -> None:
        self._state = start.state
        self._placement = start.placement
        self._first_table = start.table.copy()
        """Of revision 0: a cutover goes back to it in the layers that it leaves alone."""
        self._parts = parts
        self._desk = desk
        self._agree_every = agree_every
        self._detours = Detours(
            parts.engine,
            parts.weights,
            start.table,
            rank=parts.group.rank,
            serves_corrupt=serves_corrupt,
        )
        self._words: list[Word] = []
        self._publish()

    def before_step(self) -> int:
        """Do what is due before the next forward, and return that step's number.

        Raises RankMustEnd where the group cannot go on with this rank.
        """
        step, before = self._desk.steps_begun, self._state
        self._take_words()
        self._take_finished()
        if step % self._agree_every == 0:
            self._agree(step)
        if step % LOOK_EVERY == 0:
            self._parts.weights.begin_look(self._placement, self._detours.used)
        self._parts.cuts.at_step(step, self._state.served, self._placement)
        if self._state is not before:
            self._publish()
        self._desk.steps_begun = step + 1
        self._speak()
        return step

    def _take_words(self) -> None:
        """Feed what waits; one pass is bounded by the size of the inbox."""
        for _ in range(self._desk.inbox.capacity):
            word = self._desk.inbox.take()
            if word is None:
                return
            self._feed(word)

    def _take_finished(self) -> None:
        while (event := self._parts.weights.poll()) is not None:
            match event:
                case Restaged():
                    self._detours.restore(event)
                case TableStale(text):
                    self._detours.use_again()
                    self._feed(RaiseHalt(text))
                case _:
                    self._feed(event)

    def _agree(self, step: int) -> None:
        """Cast the ballot and obey the result; nothing else is fed in between."""
        minima = self._parts.group.agree(pack(ballot(self._state, step)))
        agreement = unpack(minima)
        if not agreement.is_in_step:
            raise OutOfStep(rank=self._parts.group.rank, step=step)
        self._feed(Agreed(step, agreement))

    def _feed(self, event: Event) -> None:
        before = self._state
        self._state, effects = rank.step(before, event)
        for effect in effects:
            self._perform(effect, before)

    def _perform(self, effect: Effect, before: RankState) -> None:
        parts = self._parts
        match effect:
            case Say(word):
                self._words.append(word)
            case BeginRound(order, number):
                parts.weights.begin_round(order, number)
            case Switch():
                self._switch(effect, before)
            case ApplyShares(name, shares):
                try:
                    self._detours.order(shares.table_of(0))
                except Exception as error:
                    what = f"share revision {name.revision} of epoch {name.epoch}"
                    raise self._failed(what, error) from error
            case Audit(halt_number):
                parts.weights.begin_audit(halt_number)
            case RouteAround(slots):
                self._detours.take(slots, self._placement)
            case RouteBack():
                self._detours.back()
            case Discard():
                pass  # the next order numbers the staging rows anew; nothing is kept of this one

    def _switch(self, switch: Switch, before: RankState) -> None:
        order = switch.order
        self._parts.cuts.closing(switch.step, before.served, self._placement)
        try:
            after = order.content.apply(self._placement)
            self._parts.engine.switch(order)
            self._first_table[order.content.layers] = order.dispatch
            table = self._first_table.copy()
            if before.served.revision:
                self._detours.order(table)
            else:
                self._detours.ordered(table)
        except Exception as error:
            raise self._failed(f"epoch {order.epoch}", error) from error
        self._placement = after

    def _failed(self, what: str, error: Exception) -> SwitchFailed:
        return SwitchFailed(rank=self._parts.group.rank, what=what, cause=str(error))

    def _publish(self) -> None:
        self._desk.snapshot = Snapshot(
            status(self._state, is_idle=False), self._placement, self._state.generation
        )

    def _speak(self) -> None:
        """Post what was said; a word for which there is no room is told by the next Hello."""
        desk = self._desk
        for word in self._words:
            desk.outbox.post(word)
        if self._words or desk.is_step_awaited:
            desk.bell.ring()
        self._words.clear()
