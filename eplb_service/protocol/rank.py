"""The rank's machine: what one rank does with the words and rounds of a wave.

Pure: step(state, event) -> (state, effects). It runs on the step side, so that no
forward ever waits for the agent's thread. Orders come in as Offers, already
checked for soundness; what only this machine knows (generation, number, base,
expiry, halt) is judged here. What an agreement decides is in rank_agreed.
"""

from dataclasses import replace

from eplb_service.domain.ids import Generation, Incarnation
from eplb_service.domain.shares import Ownership
from eplb_service.protocol.agreement import HaltWish
from eplb_service.protocol.messages import (
    Abort,
    Accepted,
    Arm,
    Armed,
    CutOver,
    Dropped,
    DropReason,
    Halted,
    Nack,
    NackReason,
    NewShares,
    OutcomeKind,
    RankPhase,
    Resume,
    SharesApplied,
    Staged,
    WaveName,
    Word,
)
from eplb_service.protocol.rank_agreed import agreed, drop
from eplb_service.protocol.rank_state import (
    Agreed,
    ApplyShares,
    Audit,
    Audited,
    Discard,
    Event,
    Held,
    Offer,
    RaiseHalt,
    RankState,
    RoundDone,
    RoundFailed,
    Say,
    Step,
    Withdraw,
)


def step(state: RankState, event: Event) -> Step:  # noqa: C901 - one line per event
    """Advance one rank by one event."""
    match event:
        case Offer():
            return _offer(state, event)
        case NewShares():
            return _new_shares(state, event)
        case Arm():
            return _arm(state, event)
        case Abort():
            return _abort(state, event)
        case Resume():
            return _resume(state, event)
        case RoundDone() | RoundFailed():
            return _round_over(state, event)
        case Withdraw(wave, reason):
            return _withdraw(state, wave, reason)
        case RaiseHalt(reason, bad_slot):
            halt = replace(state.halt, wish=HaltWish.RAISE, wish_reason=reason)
            if bad_slot and bad_slot not in (*halt.bad_slots, *halt.avoided):
                halt = replace(halt, bad_slots=(*halt.bad_slots, bad_slot))
            return replace(state, halt=halt), ()
        case Audited():
            return _audited(state, event)
        case Agreed():
            return agreed(state, event)


def _is_foreign(state: RankState, generation: Generation, incarnation: Incarnation) -> bool:
    return generation < state.generation or incarnation != state.incarnation


def _say(state: RankState, word: Word) -> Step:
    return state, (Say(word),)


def _nack(state: RankState, wave: WaveName, reason: NackReason, text: str) -> Step:
    return _say(state, Nack(wave, reason, text))


def _offer(state: RankState, offer: Offer) -> Step:
    order = offer.order
    wave = WaveName(order.epoch, order.digest)
    if _is_foreign(state, order.generation, order.incarnation):
        return _nack(state, wave, NackReason.STALE, _foreign_text(state, order.generation))
    state = replace(state, generation=order.generation)
    held = state.held
    if held and held.phase is not RankPhase.DRAINING and held.name.epoch == wave.epoch:
        return _repeat(state, held, wave)
    known = _known_end(state, wave)
    if known is not None:
        return _say(state, known)
    effects = ()
    if held:
        supersedes = held.phase is RankPhase.ACCEPTED and wave.epoch > held.name.epoch
        if not supersedes or _fault(state, offer):
            text = f"epoch {held.name.epoch} is {held.phase} here; send the order again later"
            return _nack(state, wave, NackReason.BUSY, text)
        state, effects = drop(state, DropReason.SUPERSEDED)
    fault = _fault(state, offer)
    if fault:
        state = replace(state, high_mark=wave.epoch)
        return state, (Say(Nack(wave, *fault)),)
    held = Held(order, wave, RankPhase.ACCEPTED)
    return replace(state, held=held), (*effects, Say(Accepted(wave)))


def _foreign_text(state: RankState, generation: Generation) -> str:
    return (
        f"generation {generation} or its incarnation is not current; "
        f"expected generation {state.generation} or later of incarnation {state.incarnation}"
    )


def _fault(state: RankState, offer: Offer) -> tuple[NackReason, str] | None:
    """Why the order cannot be accepted here and now, for good."""
    order, served = offer.order, state.served
    if state.halt.status.is_active:
        return NackReason.HALTED, f"halt {state.halt.status.number} stands; resume it first"
    if (order.content.base_epoch, order.content.base) != (served.epoch, served.placement):
        return NackReason.WRONG_BASE, (
            f"the order starts from epoch {order.content.base_epoch}, placement "
            f"{order.content.base:016x}; epoch {served.epoch}, placement "
            f"{served.placement:016x} is served"
        )
    if state.step >= order.expires_at_step:
        return NackReason.EXPIRED, (
            f"the order expired at step {order.expires_at_step}; this is step {state.step}"
        )
    return offer.fault


def _repeat(state: RankState, held: Held, wave: WaveName) -> Step:
    if held.name != wave:
        return _nack(
            state,
            wave,
            NackReason.CONFLICT,
            f"epoch {wave.epoch} is held here with digest {held.name.digest:016x}, "
            f"not {wave.digest:016x}",
        )
    if held.withdrawn:
        return _say(state, Dropped(wave, state.step, held.withdrawn))
    match held.phase:
        case RankPhase.STAGED:
            return _say(state, Staged(wave))
        case RankPhase.ARMED:
            return _say(state, Armed(wave))
        case _:
            return _say(state, Accepted(wave))


def _known_end(state: RankState, wave: WaveName) -> Word | None:
    """Return the word for a number that can never be accepted again; None for a fresh one."""
    outcome = state.outcome
    if wave.epoch > max(state.high_mark, state.served.epoch):
        return None
    if outcome and outcome.wave == wave:
        if outcome.kind is OutcomeKind.CUT_OVER:
            return CutOver(wave, outcome.step)
        return Dropped(wave, outcome.step, DropReason.BELOW_MARK)
    if wave.epoch > state.served.epoch:
        return Dropped(wave, state.step, DropReason.BELOW_MARK)
    reason = NackReason.CONFLICT if wave.epoch == state.served.epoch else NackReason.STALE
    return Nack(wave, reason, f"epoch {state.served.epoch} is served here already")


def _arm(state: RankState, arm: Arm) -> Step:
    if _is_foreign(state, arm.generation, arm.incarnation):
        return state, ()
    state = replace(state, generation=arm.generation)
    held = state.held
    if held and held.name == arm.wave and held.phase is not RankPhase.DRAINING:
        if held.withdrawn:
            return _say(state, Dropped(arm.wave, state.step, held.withdrawn))
        if held.phase in (RankPhase.STAGED, RankPhase.ARMED):
            state = replace(state, held=replace(held, phase=RankPhase.ARMED))
            return _say(state, Armed(arm.wave))
        return state, ()
    known = _known_end(state, arm.wave)
    return _say(state, known) if known is not None else (state, ())


def _abort(state: RankState, abort: Abort) -> Step:
    if _is_foreign(state, abort.generation, abort.incarnation):
        return state, ()
    state = replace(state, generation=abort.generation)
    wave, held = abort.wave, state.held
    if held and held.phase is not RankPhase.DRAINING and held.name.epoch == wave.epoch:
        return _withdraw(state, held.name, DropReason.ABORTED)
    known = _known_end(state, wave)
    if known is not None:
        return _say(state, known)
    if held:
        return state, ()
    state = replace(state, high_mark=wave.epoch)
    return _say(state, Dropped(wave, state.step, DropReason.ABORTED))


def _withdraw(state: RankState, wave: WaveName, reason: DropReason) -> Step:
    held = state.held
    if not held or held.name != wave or held.withdrawn or held.phase is RankPhase.DRAINING:
        return state, ()
    if held.phase is RankPhase.ACCEPTED:
        return drop(state, reason)
    return replace(state, held=replace(held, withdrawn=reason)), ()


def _round_over(state: RankState, event: RoundDone | RoundFailed) -> Step:
    held = state.held
    if not held or held.name != event.wave or event.number != held.rounds_done + 1:
        return state, ()
    held = replace(held, rounds_done=event.number)
    if held.phase is RankPhase.DRAINING:
        # Said again: whoever was greeted in the meantime was told DRAINING.
        over = Dropped(held.name, state.step, DropReason.BELOW_MARK)
        return replace(state, held=None), (Discard(held.order), Say(over))
    if isinstance(event, RoundFailed):
        held = replace(held, withdrawn=held.withdrawn or event.reason)
    elif event.number == held.order.content.num_rounds and not held.withdrawn:
        held = replace(held, phase=RankPhase.STAGED)
        return replace(state, held=held), (Say(Staged(held.name)),)
    return replace(state, held=held), ()


def _new_shares(state: RankState, event: NewShares) -> Step:
    name, served = event.name, state.served
    is_foreign = _is_foreign(state, event.generation, event.incarnation)
    if is_foreign or state.halt.status.is_active:
        return state, ()
    state = replace(state, generation=event.generation)
    if (name.epoch, name.placement) != (served.epoch, served.placement):
        return state, ()
    if name == served:
        return _say(state, SharesApplied(served, state.step))
    if name.revision <= served.revision:
        return state, ()
    if state.ownership is Ownership.OWN:
        effects = (ApplyShares(name, event.shares), Say(SharesApplied(name, state.step)))
        return replace(state, served=name), effects
    pending = state.pending
    is_newer = pending is None or (name.revision, event.generation) > (
        pending.name.revision,
        pending.generation,
    )
    return (replace(state, pending=event), ()) if is_newer else (state, ())


def _resume(state: RankState, event: Resume) -> Step:
    if _is_foreign(state, event.generation, event.incarnation):
        return state, ()
    state = replace(state, generation=event.generation)
    halt = state.halt
    if not halt.status.is_active:
        return _say(state, Halted(halt.status, state.step))
    if halt.status.number != event.halt_number or halt.wish is HaltWish.RAISE:
        return state, ()
    return state, (Audit(event.halt_number),)


def _audited(state: RankState, event: Audited) -> Step:
    """A clean one clears the halt it was asked for; what another finds is wrong at any time."""
    halt = state.halt
    if halt.wish is HaltWish.RAISE:
        return state, ()
    if not event.is_clean:
        halt = replace(halt, wish=HaltWish.RAISE, wish_reason=event.text)
        return replace(state, halt=halt), ()
    if not halt.status.is_active or halt.status.number != event.halt_number:
        return state, ()
    return replace(state, halt=replace(halt, wish=HaltWish.CLEAR, wish_reason="")), ()
