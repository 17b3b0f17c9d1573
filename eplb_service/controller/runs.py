"""A plan that runs: starts the next wave when the last is over, or ends the plan."""

from dataclasses import replace

from eplb_service.controller.machine_state import (
    DeploymentState,
    Flight,
    PlanEnded,
    PlanPhase,
    Run,
    SpendEpoch,
    Step,
)
from eplb_service.controller.membership import Membership
from eplb_service.controller.records import EpochRecord
from eplb_service.domain.errors import (
    DeploymentBusy,
    DeploymentHalted,
    EplbError,
    NotReady,
    PlanOvertaken,
)
from eplb_service.domain.ids import Epoch
from eplb_service.domain.plan import Plan
from eplb_service.domain.wave import wave_digest
from eplb_service.protocol.messages import HaltStatus, WaveName
from eplb_service.protocol.rank_agreed import RAISED_ELSEWHERE
from eplb_service.protocol.wave_state import Heard, WavePhase

AGREEMENTS_BESIDE_ROUNDS = 3
"""Accept, staged-to-armed and cut over each need an agreement of their own."""


def obstacle(state: DeploymentState, plan: Plan) -> EplbError | None:
    """Why this plan cannot start now, or None."""
    halted = halt_text(state)
    if halted:
        return DeploymentHalted(f"{halted}; resume it before a plan can run")
    if state.run or state.flight or state.spending:
        running = state.run.plan.plan_id if state.run else "of an earlier controller"
        holdup = waits_for(state)
        if running == plan.plan_id:
            return DeploymentBusy(
                f"plan {running} is running already{f' ({holdup})' if holdup else ''}; it was not "
                "started again"
            )
        return DeploymentBusy(
            f"plan {running} is running{f' ({holdup})' if holdup else ''}; wait for it, or abort "
            f"it, before starting {plan.plan_id}"
        )
    membership = state.membership
    if membership is None or not membership.is_connected or membership.served() is None:
        return NotReady(f"{waits_for(state)}; plan {plan.plan_id} was not started")
    if plan.base != state.serving.placement.digest():
        return PlanOvertaken(
            f"plan {plan.plan_id} starts from epoch {plan.base_epoch}, but epoch "
            f"{state.serving.wave.epoch} with another placement is served; draw a new plan"
        )
    return None


def halt_text(state: DeploymentState) -> str:
    """Name the halt or fault that stands; empty where none does."""
    halt = halt_of(state)
    if state.fault or halt is None:
        return state.fault
    return f"halt {halt.number} stands: {halt.reason}"


def halt_of(state: DeploymentState) -> HaltStatus | None:
    """Return the halt that stands, in the words of the rank that raised it; None without one."""
    members = state.membership.known if state.membership else ()
    halts = [(m.profile.rank, m.status.halt) for m in members if m.status.halt.is_active]
    raised = [(rank, halt) for rank, halt in halts if halt.reason != RAISED_ELSEWHERE]
    for rank, halt in raised:
        return replace(halt, reason=f"rank {rank}: {halt.reason}")
    return halts[0][1] if halts else None


def _told_served(membership: Membership) -> str:
    """Say who serves what, where ranks do not serve the same (yet)."""
    told = (f"rank {m.profile.rank} epoch {m.status.served.epoch}" for m in membership.known)
    return f"the ranks do not serve the same: {', '.join(told)}"


def waits_for(state: DeploymentState) -> str:
    """Say what a plan that runs, or its wave, waits for; empty where nothing holds it up."""
    membership, missing = state.membership, missing_ranks(state)
    away = f"ranks {missing} are not connected" if missing else ""
    if state.flight:
        return _wave_waits_for(state.flight, away)
    if away or membership is None:
        return away
    if membership.served() is None:
        return _told_served(membership)
    return "the group is idle" if membership.is_idle else ""


def _wave_waits_for(flight: Flight, away: str) -> str:
    wave = flight.wave
    match wave.phase:
        case WavePhase.ABORTED:
            end, what = Heard.DROPPED, f"epoch {wave.wave.epoch} is aborted: {wave.reason}"
        case WavePhase.COMMITTED:
            end, what = Heard.CUT_OVER, f"epoch {wave.wave.epoch} is committed"
        case _:
            return away
    silent = [rank for rank, heard in enumerate(wave.heard) if heard is not end]
    text = f"{what}; ranks {silent} have not said so, nothing else starts before they do"
    return f"{text}; {away}" if away else text


def strayed(state: DeploymentState) -> bool:
    """Whether the group serves something else than the last settled placement it could serve."""
    serving, settled = state.serving, state.settled
    return (
        settled.wave.epoch > serving.wave.epoch
        and settled.placement.layout == serving.placement.layout
        and settled.placement.phy2log.shape == serving.placement.phy2log.shape
        and settled.placement.digest() != serving.placement.digest()
    )


def missing_ranks(state: DeploymentState) -> list[int]:
    """Ranks without an open stream."""
    if state.membership is None:
        return list(range(state.serving.placement.layout.num_ranks))
    return [
        rank
        for rank, member in enumerate(state.membership.members)
        if member is None or not member.is_connected
    ]


def proceed(state: DeploymentState) -> Step:
    """Start the next wave of the plan that runs, or end the plan, when nothing is in flight."""
    run = state.run
    if run is None or state.flight or state.spending:
        return state, ()
    reason = run.stopping or halt_text(state)
    if run.num_settled == len(run.plan.waves):
        return _end(state, run, PlanPhase.DONE, "")
    if reason:
        return _end(state, run, PlanPhase.STOPPED, reason)
    if run.num_started == run.num_waves:
        text = f"throttled to {run.num_waves} of {len(run.plan.waves)} waves"
        return _end(state, run, PlanPhase.STOPPED, text)
    membership = state.membership
    if membership is None or waits_for(state):
        return state, ()
    return _spend(state, run, membership)


def tick_run(state: DeploymentState, elapsed_s: float) -> DeploymentState:
    """Give a plan up whose next wave could not start for as long as a wave may take."""
    run, membership = state.run, state.membership
    if run is None or state.flight or state.spending or (membership and membership.is_idle):
        return state
    run = replace(run, waited_s=run.waited_s + elapsed_s)
    if run.waited_s >= state.pace.wave_deadline_s:
        text = f"its next wave could not start for {run.waited_s:.0f} s: {waits_for(state)}"
        run = replace(run, stopping=run.stopping or text)
    return replace(state, run=run)


def _end(state: DeploymentState, run: Run, phase: PlanPhase, reason: str) -> Step:
    ended = PlanEnded(run.plan, phase, run.num_settled, reason)
    return replace(state, run=None), (ended,)


def _spend(state: DeploymentState, run: Run, membership: Membership) -> Step:
    planned = run.plan.waves[run.num_started]
    serving = state.serving
    if planned.content.base != serving.placement.digest():
        text = f"epoch {serving.wave.epoch} is served, which the plan did not start from"
        return _end(state, run, PlanPhase.STOPPED, text)
    content = replace(planned.content, base_epoch=serving.wave.epoch)
    agreements = content.num_rounds + AGREEMENTS_BESIDE_ROUNDS
    expires = membership.step() + state.pace.expiry_steps + agreements * state.pace.agree_every
    digest = wave_digest(content, incarnation=membership.incarnation, expires_at_step=expires)
    record = EpochRecord(
        wave=WaveName(Epoch(state.highest_epoch + 1), digest),
        incarnation=membership.incarnation,
        expires_at_step=expires,
        content=content,
        placement=planned.placement,
        shares=planned.shares,
        plan_id=run.plan.plan_id,
        note=run.plan.cause.reason,
        spent_at_s=state.now_s,
        who=run.plan.cause.who,
    )
    run = replace(run, num_started=run.num_started + 1, waited_s=0.0)
    return replace(state, run=run, spending=record), (SpendEpoch(record),)
