"""The wave in flight: runs the wave machine and turns its effects into the deployment's."""

from dataclasses import replace

from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    Faulted,
    Flight,
    RecordPhase,
    SendAbortTo,
    SendArmTo,
    SendOrderTo,
    Step,
    WaveEnded,
)
from eplb_service.controller.records import EpochEnd, EpochRecord, has_same_shape
from eplb_service.domain.ids import Epoch
from eplb_service.protocol import wave as wave_machine
from eplb_service.protocol.wave_state import (
    Effect as WaveEffect,
)
from eplb_service.protocol.wave_state import (
    Event as WaveEvent,
)
from eplb_service.protocol.wave_state import (
    GiveUp,
    GroupRestarted,
    Nudge,
    Record,
    SendAbort,
    SendArm,
    SendOrder,
    WavePhase,
    WaveState,
    WordsDiffer,
)


def start_flight(state: DeploymentState, epoch: Epoch) -> Step:
    """The number is durable: the orders leave."""
    record = state.spending
    if record is None or record.wave.epoch != epoch:
        return state, ()
    wave, effects = wave_machine.spent(
        record.wave,
        incarnation=record.incarnation,
        expires_at_step=record.expires_at_step,
        num_ranks=record.placement.layout.num_ranks,
    )
    flight = Flight(record, wave, waited_s=0.0, since_nudge_s=0.0)
    state = replace(state, spending=None, flight=flight, highest_epoch=epoch)
    return _translate(state, flight, effects)


def fly(state: DeploymentState, event: WaveEvent) -> Step:
    """Feed the wave in flight."""
    flight = state.flight
    assert flight is not None
    wave, effects = wave_machine.step(flight.wave, event)
    since_nudge_s = 0.0 if wave.phase is not flight.wave.phase else flight.since_nudge_s
    flight = replace(flight, wave=wave, since_nudge_s=since_nudge_s)
    state, translated = _translate(replace(state, flight=flight), flight, effects)
    if not wave.is_over:
        return state, translated
    state, ended = _land(state, flight)
    return state, (*translated, *ended)


def restart_flight(state: DeploymentState, served: Epoch) -> Step:
    """The group of the wave is gone; the new one's Hellos say how it ended."""
    return fly(state, GroupRestarted(served))


def tick_flight(state: DeploymentState, elapsed_s: float) -> Step:
    """Let time pass for the wave; it stands still while the group is idle."""
    flight, membership = state.flight, state.membership
    if flight is None or (membership and membership.is_idle):
        return state, ()
    waited_s, since_s = flight.waited_s + elapsed_s, flight.since_nudge_s + elapsed_s
    is_due = since_s >= state.pace.nudge_interval_s
    flight = replace(flight, waited_s=waited_s, since_nudge_s=0.0 if is_due else since_s)
    state = replace(state, flight=flight)
    effects: tuple[Effect, ...] = ()
    if waited_s >= state.pace.wave_deadline_s:
        reason = f"not staged everywhere within {state.pace.wave_deadline_s:.0f} s"
        state, effects = fly(state, GiveUp(reason))
    if is_due and state.flight:
        state, more = fly(state, Nudge())
        effects = (*effects, *more)
    return state, effects


def _translate(state: DeploymentState, flight: Flight, effects: tuple[WaveEffect, ...]) -> Step:
    out: list[Effect] = []
    for effect in effects:
        if isinstance(effect, WordsDiffer):
            state = replace(state, fault=state.fault or effect.text)
        out.append(_effect(flight.record, flight.wave, effect, now_s=state.now_s))
    return state, tuple(out)


def _effect(record: EpochRecord, wave: WaveState, effect: WaveEffect, *, now_s: float) -> Effect:
    match effect:
        case Record(phase, reason):
            return RecordPhase(EpochEnd(record.wave.epoch, phase, reason, wave.step, now_s))
        case SendOrder(rank):
            return SendOrderTo(rank, record)
        case SendArm(rank):
            return SendArmTo(rank, record)
        case SendAbort(rank):
            return SendAbortTo(rank, record)
        case WordsDiffer(text):
            return Faulted(text)


def _land(state: DeploymentState, flight: Flight) -> Step:
    """The wave is over everywhere: what it changed is what is served."""
    record, phase, run = flight.record, flight.wave.phase, state.run
    plan = run.plan if run and run.plan.plan_id == record.plan_id else None
    ended = WaveEnded(record, phase, flight.wave.reason, plan)
    if phase is WavePhase.SETTLED:
        # A group that restarted into another shape serves something of its own.
        if has_same_shape(record.placement, state.settled.placement):
            state = replace(state, serving=record, settled=record)
        if run and plan:
            run = replace(run, num_settled=run.num_settled + 1)
    elif run and plan:
        run = replace(run, stopping=run.stopping or flight.wave.reason)
    return replace(state, flight=None, run=run), (ended,)
