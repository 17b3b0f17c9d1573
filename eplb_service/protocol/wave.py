"""The controller's machine for one wave: from the number spent to all words heard.

Pure: step(state, event) -> (state, effects). A Record effect must be durable before
anything that follows it is sent; the shell answers it with Recorded. From STAGED on
the controller may not abort: it learns. One rank's word sets COMMITTED or ABORTED,
since the agreement made it the same everywhere; all words settle.
"""

from collections.abc import Iterable
from dataclasses import replace

from eplb_service.domain.ids import Epoch, Incarnation
from eplb_service.protocol.messages import (
    FINAL_NACKS,
    Accepted,
    Armed,
    CutOver,
    Dropped,
    DropReason,
    Nack,
    NackReason,
    OutcomeKind,
    RankPhase,
    RankStatus,
    Staged,
    WaveName,
)
from eplb_service.protocol.wave_state import (
    ABORTABLE,
    PROGRESS,
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
    Step,
    WavePhase,
    WaveState,
    WordsDiffer,
)


def spent(
    wave: WaveName, *, incarnation: Incarnation, expires_at_step: int, num_ranks: int
) -> Step:
    """Start of a wave whose number is spent in the store; its orders go out."""
    heard = (Heard.NOTHING,) * num_ranks
    state = WaveState(wave, incarnation, expires_at_step, WavePhase.SPENT, heard, "", 0)
    return state, tuple(SendOrder(rank) for rank in range(num_ranks))


def step(state: WaveState, event: Event) -> Step:
    """Advance one wave by one event."""
    match event:
        case Said(rank, word):
            return _said(state, rank, word)
        case Greeted(rank, status):
            return _greeted(state, rank, status)
        case Recorded(phase):
            return _recorded(state, phase)
        case GiveUp(reason):
            return _give_up(state, reason)
        case Nudge():
            return state, _nudges(state, range(len(state.heard)))
        case GroupRestarted(served):
            return _restarted(state, served)


def _said(
    state: WaveState, rank: int, word: Accepted | Nack | Staged | Armed | CutOver | Dropped
) -> Step:
    if word.wave != state.wave:
        return state, ()
    match word:
        case Accepted():
            return _hear(state, rank, Heard.ACCEPTED)
        case Staged():
            return _hear(state, rank, Heard.STAGED)
        case Armed():
            return _hear(state, rank, Heard.ARMED)
        case CutOver():
            return _ended(replace(state, step=word.step), rank, Heard.CUT_OVER, "")
        case Dropped():
            return _ended(state, rank, Heard.DROPPED, f"rank {rank} dropped it: {word.reason}")
        case Nack():
            return _nacked(state, rank, word)


def _nacked(state: WaveState, rank: int, nack: Nack) -> Step:
    text = f"rank {rank} refused it: {nack.reason}: {nack.text}"
    if nack.reason in FINAL_NACKS:
        return _ended(state, rank, Heard.DROPPED, text)
    if nack.reason is NackReason.CONFLICT:
        return _give_up(state, text)
    return state, ()


def _hear(state: WaveState, rank: int, heard: Heard) -> Step:
    """A rank came further; words may be lost or repeated, so only the furthest counts."""
    before = state.heard[rank]
    if before not in PROGRESS or PROGRESS.index(before) >= PROGRESS.index(heard):
        return state, ()
    state = _with_heard(state, rank, heard)
    if state.phase not in ABORTABLE:
        return state, ()
    floor = min(PROGRESS.index(h) if h in PROGRESS else 0 for h in state.heard)
    if floor >= PROGRESS.index(Heard.STAGED):
        return replace(state, phase=WavePhase.STAGED), (Record(WavePhase.MAY_COMMIT, ""),)
    phase = WavePhase.MOVING if floor else WavePhase.ACCEPTED
    return replace(state, phase=phase), ()


def _ended(state: WaveState, rank: int, end: Heard, why: str) -> Step:
    """A rank told its end of the wave; one word decides, all words settle."""
    other = Heard.DROPPED if end is Heard.CUT_OVER else Heard.CUT_OVER
    is_news = state.heard[rank] is not end
    state = _with_heard(state, rank, end)
    if other in state.heard:
        text = f"epoch {state.wave.epoch}: " + ", ".join(
            f"rank {r} {h}" for r, h in enumerate(state.heard)
        )
        return state, (WordsDiffer(text),) if is_news else ()
    if end is Heard.DROPPED:
        return _learn_drop(state, why)
    match state.phase:
        case WavePhase.MAY_COMMIT:
            committed = replace(state, phase=WavePhase.COMMITTED)
            return _settle(committed, (Record(WavePhase.COMMITTED, ""),))
        case WavePhase.COMMITTED:
            return _settle(state, ())
        case WavePhase.SETTLED | WavePhase.STAGED:
            return state, ()
        case WavePhase.SPENT | WavePhase.ACCEPTED | WavePhase.MOVING | WavePhase.ABORTED:
            text = f"rank {rank} cut over to epoch {state.wave.epoch}, which is {state.phase}"
            return state, (WordsDiffer(text),) if is_news else ()


def _learn_drop(state: WaveState, why: str) -> Step:
    if state.phase in (*ABORTABLE, WavePhase.MAY_COMMIT):
        aborted = replace(state, phase=WavePhase.ABORTED, reason=why)
        return aborted, (Record(WavePhase.ABORTED, why),)
    return state, ()


def _settle(state: WaveState, effects: tuple[Effect, ...]) -> Step:
    if any(heard is not Heard.CUT_OVER for heard in state.heard):
        return state, effects
    settled = replace(state, phase=WavePhase.SETTLED)
    return settled, (*effects, Record(WavePhase.SETTLED, ""))


def _with_heard(state: WaveState, rank: int, heard: Heard) -> WaveState:
    return replace(state, heard=(*state.heard[:rank], heard, *state.heard[rank + 1 :]))


def _recorded(state: WaveState, phase: WavePhase) -> Step:
    """Words that wait for a record to be durable go out now."""
    ranks = range(len(state.heard))
    if phase is WavePhase.ABORTED:
        return state, _nudges(state, ranks)
    if phase is not WavePhase.MAY_COMMIT or state.phase is not WavePhase.STAGED:
        return state, ()
    state = replace(state, phase=WavePhase.MAY_COMMIT)
    if Heard.DROPPED in state.heard:
        rank = state.heard.index(Heard.DROPPED)
        return _learn_drop(state, f"rank {rank} dropped it before it was armed")
    return state, tuple(SendArm(rank) for rank in ranks)


def _give_up(state: WaveState, reason: str) -> Step:
    if state.phase not in ABORTABLE:
        return state, ()
    aborted = replace(state, phase=WavePhase.ABORTED, reason=reason)
    return aborted, (Record(WavePhase.ABORTED, reason),)


def _greeted(state: WaveState, rank: int, status: RankStatus) -> Step:
    """Read a rank's status as the words that may have been lost."""
    effects: tuple[Effect, ...] = ()
    for word in _words_of(state.wave, status):
        state, more = _said(state, rank, word)
        effects = (*effects, *more)
    return state, (*effects, *_nudges(state, [rank]))


def _words_of(
    wave: WaveName, status: RankStatus
) -> tuple[Accepted | Staged | Armed | CutOver | Dropped, ...]:
    outcome = status.outcome
    if outcome and outcome.wave == wave:
        if outcome.kind is OutcomeKind.CUT_OVER:
            return (CutOver(wave, outcome.step),)
        return (Dropped(wave, outcome.step, DropReason.BELOW_MARK),)
    if status.held != wave:
        return ()
    match status.phase:
        case RankPhase.ARMED:
            return (Accepted(wave), Staged(wave), Armed(wave))
        case RankPhase.STAGED:
            return (Accepted(wave), Staged(wave))
        case RankPhase.ACCEPTED | RankPhase.MOVING:
            return (Accepted(wave),)
        case RankPhase.SERVING | RankPhase.DRAINING:
            return ()


def _nudges(state: WaveState, ranks: Iterable[int]) -> tuple[Effect, ...]:
    """What to say (again) to ranks whose next word is awaited."""
    effects: list[Effect] = []
    for rank in ranks:
        heard = state.heard[rank]
        match state.phase:
            case WavePhase.SPENT | WavePhase.ACCEPTED | WavePhase.MOVING:
                if heard in (Heard.NOTHING, Heard.ACCEPTED):
                    effects.append(SendOrder(rank))
            case WavePhase.MAY_COMMIT | WavePhase.COMMITTED:
                if heard is not Heard.CUT_OVER:
                    effects.append(SendArm(rank))
            case WavePhase.ABORTED:
                if heard is not Heard.DROPPED:
                    effects.append(SendAbort(rank))
            case WavePhase.STAGED | WavePhase.SETTLED:
                pass
    return tuple(effects)


def _restarted(state: WaveState, served: Epoch) -> Step:
    """The group that held the wave is gone; the new one's Hellos say how it ended."""
    num_ranks = len(state.heard)
    has_cut_over = state.phase is WavePhase.COMMITTED or (
        state.phase is WavePhase.MAY_COMMIT and served == state.wave.epoch
    )
    if has_cut_over:
        heard = (Heard.CUT_OVER,) * num_ranks
        settled = replace(state, phase=WavePhase.SETTLED, heard=heard)
        return settled, (Record(WavePhase.SETTLED, ""),)
    if state.phase is WavePhase.SETTLED:
        return state, ()
    heard, why = (Heard.DROPPED,) * num_ranks, state.reason or "its rank group restarted"
    aborted = replace(state, phase=WavePhase.ABORTED, heard=heard, reason=why)
    return aborted, (Record(WavePhase.ABORTED, why),)
