"""The controller's own machine of a deployment, driven as its driver drives it.

Events queue up; the effects of one are performed, in order and one at a time, before the
next event is taken, so that a crash can fall between any two of them. A write that the
store does not answer is tried again, and nothing passes it by.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

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
from eplb_service.controller.recovery import recovered_state
from eplb_service.domain.errors import EplbError, RegistrationRefused
from eplb_service.domain.ids import Generation
from eplb_service.domain.plan import Plan
from eplb_service.protocol.messages import Abort, Arm
from eplb_service.protocol.wave_state import WaveState
from eplb_service.sim.beliefs import Beliefs
from eplb_service.sim.desk import Post
from eplb_service.sim.desk_words import described, last_words, order_for
from eplb_service.sim.records import found_in, wave_record
from eplb_service.sim.store import SimStore, WaveRecord
from eplb_service.sim.story import Violation

PACE = Pace(nudge_interval_s=1.0, wave_deadline_s=8.0, expiry_steps=20, agree_every=1)
TICK_S = 1.0
"""Between two nudges."""


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

    def tell(self, event: Event, beliefs: Beliefs) -> None:
        """Queue an event; the first Hello of all begins the deployment."""
        del beliefs
        if isinstance(event, Ticked):
            self._now_s = event.now_s
        if self.state is None and isinstance(event, RankGreeted):
            self.state = begin(event.hello, pace=self._pace, now_s=self._now_s)
        if self.state is not None:
            self._events.append(event)

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

    def _spend(self, written: WaveRecord) -> None:
        try:
            self._store.spend(self._generation, written)
        finally:
            # A write may be done and its answer lost: whoever leads next goes on with it.
            if self._store.records.get(written.wave.epoch) is written:
                self._on_spent(written)

    def _do(self, effect: Effect) -> Event | None:
        generation = self._generation
        match effect:
            case Register(membership, _):
                self._store.see_incarnation(generation, membership.incarnation)
            case SpendEpoch(record):
                self._spend(wave_record(record))
                return EpochSpent(record.wave.epoch)
            case RecordPhase(end):
                self._store.write(generation, end.epoch, end.phase)
                return PhaseRecorded(end.epoch, end.phase, self._now_s)
            case SendOrderTo(rank, record):
                self._post(rank, order_for(rank, record, generation))
            case SendArmTo(rank, record):
                self._post(rank, Arm(generation, record.incarnation, record.wave))
            case SendAbortTo(rank, record):
                self._post(rank, Abort(generation, record.incarnation, record.wave))
            case WaveEnded():
                self._ended = last_words(effect)
            case Faulted(text):
                self._store.require_lead(generation)
                raise Violation(f"words differ: {text}")
            case PlanStarted() | PlanEnded():
                pass
        return None
