"""The controller's own machine of a deployment, driven as its driver drives it.

Events queue up; the effects of one are performed, in order and one at a time, before the
next event is taken, so that a crash can fall between any two of them. A write that the
store does not answer is tried again, and nothing passes it by.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from eplb_service.controller.machine import begin, step
from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    EpochSpent,
    Event,
    Faulted,
    Pace,
    PhaseRecorded,
    PlanEnded,
    PlanStarted,
    RankGreeted,
    RankLeft,
    RankSaid,
    RankStepped,
    RecordPhase,
    Register,
    RunAsked,
    SendAbortTo,
    SendArmTo,
    SendOrderTo,
    SpendEpoch,
    StopAsked,
    Ticked,
    WaveEnded,
)
from eplb_service.controller.records import EpochRecord
from eplb_service.controller.recovery import recovered_state
from eplb_service.domain.errors import EplbError, RegistrationRefused
from eplb_service.domain.ids import Generation, Incarnation
from eplb_service.domain.plan import Plan
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import Abort, Arm, Hello, Word
from eplb_service.protocol.wave_state import WaveState
from eplb_service.sim.beliefs import Beliefs
from eplb_service.sim.desk import Post
from eplb_service.sim.records import found_in, wave_record
from eplb_service.sim.store import SimStore, WaveRecord
from eplb_service.sim.story import Violation

PACE = Pace(nudge_interval_s=1.0, wave_deadline_s=8.0, expiry_steps=20, agree_every=1)
TICK_S = 1.0


class MachineDesk:
    """One deployment at one controller. `on_spent` hears of every number that it spent."""

    def __init__(
        self,
        generation: Generation,
        store: SimStore,
        post: Post,
        on_spent: Callable[[WaveRecord], None],
    ) -> None:
        self._pace = replace(PACE, agree_every=store.deployment.agree_every)
        found = found_in(store)
        self._now_s = 0.0
        self.state: DeploymentState | None = (
            recovered_state(found, pace=self._pace, now_s=self._now_s) if found else None
        )
        self._events: deque[Event] = deque()
        self._todo: deque[Effect] = deque()
        self._ended: WaveState | None = None
        self._generation = generation
        self._store = store
        self._post = post
        self._on_spent = on_spent

    @property
    def wave(self) -> WaveState | None:
        """The wave in flight, or the last one that ended since a plan was asked for."""
        flight = self.state.flight if self.state else None
        return flight.wave if flight else self._ended

    @property
    def is_over(self) -> bool:
        """Whether no plan runs, no wave flies, and all ranks are heard and serve the same."""
        state = self.state
        if state is None or self.has_todo or state.run or state.flight or state.spending:
            return False
        membership = state.membership
        return membership is not None and membership.is_connected and bool(membership.served())

    @property
    def has_todo(self) -> bool:
        """Whether effects or events wait."""
        return bool(self._todo or self._events)

    def ask(self, plan: Plan) -> None:
        """Have a plan carried out, if the machine lets it start."""
        self._ended = None
        self._events.append(RunAsked(plan, len(plan.waves), self._now_s))

    def greet(self, rank: int, hello: Hello, beliefs: Beliefs) -> None:
        """Take a Hello; the first of all begins the deployment."""
        del rank, beliefs
        if self.state is None:
            self.state = begin(hello, pace=self._pace, now_s=self._now_s)
        self._events.append(RankGreeted(hello))

    def hear(self, rank: int, incarnation: Incarnation, word: Word) -> None:
        """Take a word."""
        self._events.append(RankSaid(rank, incarnation, word))

    def leave(self, rank: int, incarnation: Incarnation) -> None:
        """A rank's stream ended."""
        if self.state is not None:
            self._events.append(RankLeft(rank, incarnation))

    def stepped(self, rank: int, incarnation: Incarnation, step: int) -> None:
        """A rank's report told its step."""
        if self.state is not None:
            self._events.append(RankStepped(rank, incarnation, step))

    def nudge(self) -> None:
        """Let a second pass."""
        self.jump(elapsed_s=TICK_S, now_s=self._now_s + TICK_S)

    def jump(self, *, elapsed_s: float, now_s: float) -> None:
        """Let time pass, or the wall clock be set."""
        self._now_s = now_s
        if self.state is not None:
            self._events.append(Ticked(elapsed_s, now_s))

    def be_patient(self, num_nudges: int) -> None:
        """Tune the deadline of a wave, whatever runs."""
        self._tune(replace(self._pace, wave_deadline_s=num_nudges * TICK_S))

    def expire_within(self, num_steps: int) -> None:
        """Tune how many steps the next waves live."""
        self._tune(replace(self._pace, expiry_steps=num_steps))

    def give_up(self, reason: str) -> None:
        """Abort the plan that runs: its running wave finishes."""
        if self.state and self.state.run:
            self._events.append(StopAsked(self.state.run.plan.plan_id, reason))

    def perform(self) -> str:
        """Do one effect, or take one event in."""
        if not self._todo:
            return self._take_in(self._events.popleft())
        effect = self._todo[0]
        answer = self._do(effect)
        self._todo.popleft()
        if answer is not None:
            more = self._advance(answer)
            self._todo.extendleft(reversed(more))
        return f"does {described(effect)}"

    def _tune(self, pace: Pace) -> None:
        self._pace = pace
        if self.state is not None:
            self.state = replace(self.state, pace=pace)

    def _take_in(self, event: Event) -> str:
        try:
            self._todo.extend(self._advance(event))
        except RegistrationRefused as refused:
            raise Violation(f"a sound rank was refused: {refused}") from refused
        except EplbError as refused:
            return f"refuses {type(event).__name__}: {refused}"
        return f"takes {type(event).__name__}"

    def _advance(self, event: Event) -> tuple[Effect, ...]:
        assert self.state is not None
        self.state, effects = step(self.state, event)
        return effects

    def _do(self, effect: Effect) -> Event | None:
        generation = self._generation
        match effect:
            case Register(membership, _):
                self._store.see_incarnation(generation, membership.incarnation)
            case SpendEpoch(record):
                written = wave_record(record)
                self._store.spend(generation, written)
                self._on_spent(written)
                return EpochSpent(record.wave.epoch)
            case RecordPhase(end):
                self._store.write(generation, end.epoch, end.phase)
                return PhaseRecorded(end.epoch, end.phase, self._now_s)
            case SendOrderTo(rank, record):
                self._post(rank, _order(rank, record, generation))
            case SendArmTo(rank, record):
                self._post(rank, Arm(generation, record.incarnation, record.wave))
            case SendAbortTo(rank, record):
                self._post(rank, Abort(generation, record.incarnation, record.wave))
            case WaveEnded():
                self._ended = self._last_words(effect)
            case Faulted(text):
                self._store.require_lead(generation)
                raise Violation(f"words differ: {text}")
            case PlanStarted() | PlanEnded():
                pass
        return None

    @staticmethod
    def _last_words(ended: WaveEnded) -> WaveState:
        record = ended.record
        return WaveState(
            record.wave,
            record.incarnation,
            record.expires_at_step,
            ended.phase,
            heard=(),
            reason=ended.reason,
            step=0,
        )


def _order(rank: int, record: EpochRecord, generation: Generation) -> Order:
    assert record.content is not None
    return Order(
        epoch=record.wave.epoch,
        generation=generation,
        incarnation=record.incarnation,
        expires_at_step=record.expires_at_step,
        content=record.content,
        dispatch=np.ascontiguousarray(record.shares.table_of(rank)[record.content.layers]),
    )


def described(effect: Effect) -> str:
    """Name an effect in a few words."""
    match effect:
        case SpendEpoch(record):
            until = f"until step {record.expires_at_step}"
            return f"SpendEpoch({record.wave.epoch} of {record.plan_id} {until})"
        case RecordPhase(end):
            return f"RecordPhase({end.epoch} {end.phase}{f': {end.reason}' if end.reason else ''})"
        case SendOrderTo(rank, record) | SendArmTo(rank, record) | SendAbortTo(rank, record):
            return f"{type(effect).__name__}(r{rank} {record.wave.epoch})"
        case PlanEnded(plan, phase, num_settled, reason):
            return f"PlanEnded({plan.plan_id} {phase} after {num_settled}: {reason})"
        case WaveEnded(record, phase):
            return f"WaveEnded({record.wave.epoch} {phase})"
        case _:
            return type(effect).__name__
