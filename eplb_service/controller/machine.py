"""The controller's machine for one deployment: membership, plans and waves.

Pure: step(state, event) -> (state, effects). Effects are performed in order; a
SpendEpoch or RecordPhase must be durable before any effect after it. The shell
answers them with EpochSpent and PhaseRecorded.
"""

from dataclasses import replace

from eplb_service.controller.flights import fly, restart_flight, start_flight, tick_flight
from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    EpochSpent,
    Event,
    FaultCleared,
    GiveUpAsked,
    Pace,
    PhaseRecorded,
    PlanStarted,
    RankGreeted,
    RankLeft,
    RankSaid,
    RankStepped,
    Register,
    Run,
    RunAsked,
    Step,
    StopAsked,
    Ticked,
)
from eplb_service.controller.membership import empty, greet, leave, status_of, update
from eplb_service.controller.records import EpochRecord, has_same_shape
from eplb_service.controller.runs import obstacle, proceed, tick_run
from eplb_service.controller.statuses import fold
from eplb_service.domain.ids import NO_DIGEST
from eplb_service.domain.shares import even_shares
from eplb_service.protocol.messages import (
    Accepted,
    Armed,
    CutOver,
    Dropped,
    Halted,
    Hello,
    Nack,
    Staged,
    WaveName,
)
from eplb_service.protocol.wave_state import GiveUp, Greeted, Recorded, Said, WavePhase


def begin(hello: Hello, *, pace: Pace, now_s: float) -> DeploymentState:
    """State of a deployment that nothing is recorded of, before its first Hello is taken.

    Raises RegistrationRefused for a Hello that contradicts itself.
    """
    greet(empty(hello), hello)
    first = adopted(hello, note="served when first seen", now_s=now_s)
    return DeploymentState(
        membership=None,
        serving=first,
        settled=first,
        highest_epoch=first.wave.epoch,
        run=None,
        spending=None,
        flight=None,
        fault="",
        pace=pace,
        now_s=now_s,
    )


def adopted(hello: Hello, *, note: str, now_s: float) -> EpochRecord:
    """Take what a rank serves for the deployment's placement."""
    served = hello.status.served
    return EpochRecord(
        wave=WaveName(served.epoch, NO_DIGEST),
        incarnation=hello.incarnation,
        expires_at_step=0,
        content=None,
        placement=hello.placement,
        shares=even_shares(hello.placement, hello.profile.ownership),
        plan_id="",
        note=note,
        spent_at_s=now_s,
    )


def to_load(state: DeploymentState) -> EpochRecord:
    """Return what a new group of ranks should load: the newest that was cut over to, if it fits."""
    flight, settled = state.flight, state.settled
    if flight is None or flight.wave.phase is not WavePhase.COMMITTED:
        return settled
    is_fit = has_same_shape(flight.record.placement, settled.placement)
    return flight.record if is_fit else settled


def step(state: DeploymentState, event: Event) -> Step:
    """Advance one deployment by one event.

    Raises, with the state unchanged, StaleMessage, RegistrationRefused or UnknownRank for
    a rank that must not be listened to, and what runs.obstacle finds for a plan.
    """
    flight = state.flight
    state, effects = _react(state, event)
    if flight and flight.greeted and not state.flight:
        state, more = _over_at_last(state, flight.greeted)
        effects = (*effects, *more)
    state, more = proceed(state)
    return state, (*effects, *more)


def _react(state: DeploymentState, event: Event) -> Step:  # noqa: C901 - one line per event
    match event:
        case RankGreeted(hello):
            return _greeted(state, hello)
        case RankSaid():
            return _said(state, event)
        case RankStepped(rank, incarnation, at):
            return _stepped(state, rank, incarnation, at)
        case RankLeft(rank, incarnation):
            return _left(state, rank, incarnation)
        case RunAsked(plan, num_waves, now_s):
            found = obstacle(state, plan)
            if found is not None:
                raise found
            run = Run(plan, num_waves, num_started=0, num_settled=0, stopping="")
            return replace(state, run=run, now_s=now_s), (PlanStarted(plan),)
        case StopAsked() | GiveUpAsked():
            return _hurried(state, event)
        case EpochSpent(epoch):
            return start_flight(state, epoch)
        case PhaseRecorded(epoch, phase, now_s):
            state = replace(state, now_s=now_s)
            flight = state.flight
            if flight is None or flight.record.wave.epoch != epoch:
                return state, ()
            return fly(state, Recorded(phase))
        case FaultCleared():
            return replace(state, fault=""), ()
        case Ticked(elapsed_s, now_s):
            state = tick_run(replace(state, now_s=now_s), elapsed_s)
            return tick_flight(state, elapsed_s)


def _greeted(state: DeploymentState, hello: Hello) -> Step:
    before = state.membership
    membership = greet(before or empty(hello), hello)
    effects: tuple[Effect, ...] = ()
    if before is None or membership.incarnation > before.incarnation:
        state = _fitted(state, hello)
        effects = (Register(membership, state.settled),)
    state = replace(state, membership=membership)
    flight = state.flight
    if flight and flight.wave.incarnation == membership.incarnation:
        state, more = fly(state, Greeted(hello.profile.rank, hello.status))
        effects = (*effects, *more)
        if state.flight:
            return replace(state, flight=replace(state.flight, greeted=hello)), effects
        # The wave that this greeting ended was all that kept the ranks from being believed.
    if not membership.is_complete:
        return state, effects
    state, more = _all_greeted(state, hello)
    return state, (*effects, *more)


def _over_at_last(state: DeploymentState, hello: Hello) -> Step:
    """Believe ranks that greeted while a wave was in flight, now that words have ended it.

    A group that restarted may serve something else than what is on record as settled.
    """
    membership, told = state.membership, hello.status.served
    if membership is None or not membership.is_complete:
        return state, ()
    served = membership.served()
    is_of_group = hello.incarnation == membership.incarnation
    if not is_of_group or served is None or served.placement != told.placement:
        return state, ()
    return _all_greeted(state, hello) if served.epoch == told.epoch else (state, ())


def _all_greeted(state: DeploymentState, hello: Hello) -> Step:
    """Every rank of the incarnation has told what it serves: believe them.

    Ranks that load what Welcome named greet a second time, one after the other; until
    they all tell the same nothing is decided, and obstacle() lets no plan start.
    """
    membership = state.membership
    assert membership is not None
    served = membership.served()
    if served is None:
        return state, ()
    effects: tuple[Effect, ...] = ()
    if state.flight:
        state, effects = restart_flight(state, served.epoch)
    marks = (served.epoch, *(member.status.high_mark for member in membership.known))
    recorded, state = (
        state.highest_epoch,
        replace(state, highest_epoch=max(state.highest_epoch, *marks)),
    )
    for known in (state.serving, state.settled):
        if (known.wave.epoch, known.placement.digest()) == (served.epoch, served.placement):
            return replace(state, serving=known), effects
    found = adopted(hello, note="adopted from the ranks", now_s=state.now_s)
    # The store takes a number that it does not know for settled; see Store.register.
    settled = found if served.epoch > recorded else state.settled
    state = replace(state, serving=found, settled=settled)
    return state, (*effects, Register(membership, found))


def _fitted(state: DeploymentState, hello: Hello) -> DeploymentState:
    """A new group of another shape can load nothing that is on record: it starts anew."""
    if has_same_shape(hello.placement, state.settled.placement):
        return state
    first = adopted(hello, note="served by a group of another shape", now_s=state.now_s)
    return replace(state, serving=first, settled=first)


def _said(state: DeploymentState, event: RankSaid) -> Step:
    membership, word = state.membership, event.word
    if membership is None or event.incarnation != membership.incarnation:
        return state, ()
    flight = state.flight
    status = status_of(membership, event.rank)
    status = fold(status, word, flight.record if flight else None)
    state = replace(state, membership=update(membership, event.rank, status))
    if isinstance(word, Halted) and word.halt.is_active and state.run:
        stopping = state.run.stopping or f"halt {word.halt.number}: {word.halt.reason}"
        state = replace(state, run=replace(state.run, stopping=stopping))
    if flight and isinstance(word, Accepted | Nack | Staged | Armed | CutOver | Dropped):
        return fly(state, Said(event.rank, word))
    return state, ()


def _stepped(state: DeploymentState, rank: int, incarnation: int, at: int) -> Step:
    membership = state.membership
    if membership is None or incarnation != membership.incarnation:
        return state, ()
    status = status_of(membership, rank)
    if at <= status.step:
        return state, ()
    status = replace(status, step=at, is_idle=False)
    return replace(state, membership=update(membership, rank, status)), ()


def _left(state: DeploymentState, rank: int, incarnation: int) -> Step:
    membership = state.membership
    if membership is None or incarnation != membership.incarnation:
        return state, ()
    return replace(state, membership=leave(membership, rank)), ()


def _hurried(state: DeploymentState, event: StopAsked | GiveUpAsked) -> Step:
    """End the plan early, and its wave too where that is asked."""
    match event:
        case StopAsked(plan_id, reason):
            return _stop(state, plan_id, reason), ()
        case GiveUpAsked(reason):
            if state.run:
                state = _stop(state, state.run.plan.plan_id, reason)
            return fly(state, GiveUp(reason)) if state.flight else (state, ())


def _stop(state: DeploymentState, plan_id: str, reason: str) -> DeploymentState:
    run = state.run
    if run is None or run.plan.plan_id != plan_id or run.stopping:
        return state
    return replace(state, run=replace(run, stopping=reason))
