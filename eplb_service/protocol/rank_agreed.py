"""What one rank does at an agreement.

Every rank holds the same Agreement, so what it decides here it decides with all
others: to begin a round, to cut over, to drop, to halt, to use new shares.
Halt beats cutover beats expiry.
"""

from dataclasses import replace

from eplb_service.domain.shares import Ownership
from eplb_service.domain.wave import first_shares
from eplb_service.protocol.agreement import NO_WAVE, Agreement, HaltWish
from eplb_service.protocol.messages import (
    CutOver,
    Dropped,
    DropReason,
    Halted,
    HaltStatus,
    Outcome,
    OutcomeKind,
    RankPhase,
    SharesApplied,
)
from eplb_service.protocol.rank_state import (
    Agreed,
    ApplyShares,
    BeginRound,
    Discard,
    Effect,
    Halt,
    Held,
    RankState,
    RouteAround,
    RouteBack,
    Say,
    Step,
    Switch,
)

RAISED_ELSEWHERE = "raised by another rank"
"""Reason of a halt at a rank that did not raise it."""


def agreed(state: RankState, event: Agreed) -> Step:
    """Do what the group agreed before `event.step`."""
    agreement = event.agreement
    state = replace(state, step=event.step)
    if agreement.is_any_raising or (agreement.is_any_halted and not agreement.is_all_clearing):
        return _halt(state, agreement)
    state, effects = _end_halt(state)
    state, more = _follow_wave(state, agreement)
    state, last = _follow_shares(state, agreement)
    return state, (*effects, *more, *last)


def drop(state: RankState, reason: DropReason) -> Step:
    """Let go of the held order; a round that all ranks began is still completed."""
    held = state.held
    assert held is not None
    why = held.withdrawn or reason
    outcome = Outcome(held.name, OutcomeKind.DROPPED, state.step)
    mark = max(state.high_mark, held.name.epoch)
    word = Say(Dropped(held.name, state.step, why))
    if held.is_moving and held.rounds_begun > held.rounds_done:
        left: Held | None = replace(held, phase=RankPhase.DRAINING)
        effects: tuple[Effect, ...] = (word,)
    else:
        left, effects = None, (word, Discard(held.order))
    return replace(state, held=left, high_mark=mark, outcome=outcome), effects


def _halt(state: RankState, agreement: Agreement) -> Step:
    before = state.halt
    number = before.status.number + (1 if agreement.is_any_raising else 0)
    reason = before.wish_reason or (
        RAISED_ELSEWHERE if agreement.is_any_raising else before.status.reason
    )
    after = HaltStatus(number, is_active=True, reason=reason)
    effects: tuple[Effect, ...] = ()
    if after != before.status:
        effects = (Say(Halted(after, state.step)),)
    halt, around = _avoid(before, agreement)
    effects = (*around, *effects)
    is_heard = agreement.is_any_raising and not halt.bad_slots
    if is_heard:
        halt = replace(halt, wish=HaltWish.NONE, wish_reason="")
    state = replace(state, halt=replace(halt, status=after), pending=None)
    if state.held and state.held.phase is not RankPhase.DRAINING:
        state, dropped = drop(state, DropReason.HALTED)
        effects = (*dropped, *effects)
    return state, effects


def _avoid(halt: Halt, agreement: Agreement) -> tuple[Halt, tuple[Effect, ...]]:
    """Route around the slot that the group has just learned of; one at each agreement."""
    bad = agreement.bad_slot
    left = tuple(slot for slot in halt.bad_slots if slot != bad)
    if not bad or bad in halt.avoided:
        return replace(halt, bad_slots=left), ()
    avoided = (*halt.avoided, bad)
    return replace(halt, bad_slots=left, avoided=avoided), (RouteAround(avoided),)


def _end_halt(state: RankState) -> Step:
    status = state.halt.status
    if not status.is_active:
        return state, ()
    ended = replace(status, is_active=False)
    effects: tuple[Effect, ...] = (Say(Halted(ended, state.step)),)
    if state.halt.avoided:
        effects = (RouteBack(), *effects)
    return replace(state, halt=Halt(ended)), effects


def _follow_wave(state: RankState, agreement: Agreement) -> Step:
    held = state.held
    if held is None or held.phase is RankPhase.DRAINING:
        return state, ()
    is_common = agreement.accepted == held.name
    if is_common and agreement.armed == held.name != NO_WAVE:
        return _cut_over(state, held)
    if state.step >= held.order.expires_at_step:
        return drop(state, DropReason.EXPIRED)
    if held.is_moving and not is_common:
        return drop(state, DropReason.WITHDRAWN)
    if is_common:
        return _move_on(state, held, agreement)
    return state, ()


def _cut_over(state: RankState, held: Held) -> Step:
    assert held.phase is RankPhase.ARMED
    outcome = Outcome(held.name, OutcomeKind.CUT_OVER, state.step)
    after = replace(
        state,
        served=first_shares(held.order.epoch, held.order.content),
        high_mark=held.name.epoch,
        held=None,
        outcome=outcome,
        pending=None,
    )
    return after, (Switch(held.order, state.step), Say(CutOver(held.name, state.step)))


def _move_on(state: RankState, held: Held, agreement: Agreement) -> Step:
    """Begin the next transfer round, if every rank has finished the last."""
    num_rounds = held.order.content.num_rounds
    is_ready = held.phase is RankPhase.ACCEPTED or (
        held.phase is RankPhase.MOVING
        and held.rounds_begun < num_rounds
        and agreement.rounds_done >= held.rounds_begun
    )
    if not is_ready:
        return state, ()
    begun = replace(held, phase=RankPhase.MOVING, rounds_begun=held.rounds_begun + 1)
    return replace(state, held=begun), (BeginRound(held.order, begun.rounds_begun),)


def _follow_shares(state: RankState, agreement: Agreement) -> Step:
    pending = state.pending
    if pending is None or state.ownership is not Ownership.REPLICATED:
        return state, ()
    if (agreement.revision, agreement.shares) != (pending.name.revision, pending.name.digest):
        return state, ()
    name, served = pending.name, state.served
    state = replace(state, pending=None)
    if (name.epoch, name.placement) != (served.epoch, served.placement):
        return state, ()
    applied = (ApplyShares(name, pending.shares), Say(SharesApplied(name, state.step)))
    return replace(state, served=name), applied
