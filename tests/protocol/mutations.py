"""Safeguards of the protocol, each taken out: what the simulator must notice.

Every mutation replaces one line of the real machines; the same seeds run clean without it.
"""

# A mutation takes the place of something private: that is its point.
# pyright: reportPrivateUsage=false

from collections.abc import Callable
from dataclasses import replace

import pytest

from eplb_service.controller import planning, recovery
from eplb_service.domain import waves
from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.placement import Placement
from eplb_service.protocol import rank, rank_agreed, rank_state, wave
from eplb_service.protocol.agreement import NOT_MOVING, Agreement, Ballot, HaltWish
from eplb_service.protocol.messages import (
    Arm,
    Armed,
    DropReason,
    NackReason,
    OutcomeKind,
    RankPhase,
    Resume,
    WaveName,
    Word,
)
from eplb_service.protocol.rank_state import Audit, Held, Offer, RankState, Say, Step
from eplb_service.protocol.wave_state import (
    ABORTABLE,
    PROGRESS,
    Heard,
    Record,
    SendArm,
    WavePhase,
    WaveState,
)
from eplb_service.protocol.wave_state import Step as WaveStep
from eplb_service.sim import group, records
from eplb_service.sim.store import SimStore, Trouble

Mutate = Callable[[pytest.MonkeyPatch], None]


def skip_the_base_check(patch: pytest.MonkeyPatch) -> None:
    original = rank._fault

    def fault(state: RankState, offer: Offer) -> tuple[NackReason, str] | None:
        found = original(state, offer)
        return None if found and found[0] is NackReason.WRONG_BASE else found

    patch.setattr(rank, "_fault", fault)


def agree_on_staged_instead_of_armed(patch: pytest.MonkeyPatch) -> None:
    original = rank_agreed._cut_over

    def ballot(state: RankState, step: int) -> Ballot:
        cast = rank_state.ballot(state, step)
        is_staged = state.held is not None and state.held.phase is RankPhase.STAGED
        return replace(cast, armed=cast.accepted) if is_staged else cast

    def cut_over(state: RankState, held: Held) -> Step:
        return original(state, replace(held, phase=RankPhase.ARMED))

    patch.setattr(group, "ballot", ballot)
    patch.setattr(rank_agreed, "_cut_over", cut_over)


def drop_on_one_rank_alone(patch: pytest.MonkeyPatch) -> None:
    def withdraw(state: RankState, name: WaveName, reason: DropReason) -> Step:
        if state.held is None or state.held.name != name:
            return state, ()
        return rank.drop(state, reason)

    patch.setattr(rank, "_withdraw", withdraw)


def remember_no_high_mark(patch: pytest.MonkeyPatch) -> None:
    original = rank._known_end

    def known_end(state: RankState, name: WaveName) -> Word | None:
        return original(replace(state, high_mark=state.served.epoch), name)

    patch.setattr(rank, "_known_end", known_end)


def arm_before_all_are_staged(patch: pytest.MonkeyPatch) -> None:
    original = wave._hear

    def hear(state: WaveState, number: int, heard: Heard) -> WaveStep:
        if heard is not Heard.STAGED or state.phase not in ABORTABLE:
            return original(state, number, heard)
        before = state.heard[number]
        if before not in PROGRESS or PROGRESS.index(before) >= PROGRESS.index(heard):
            return state, ()
        state = wave._with_heard(state, number, heard)
        return replace(state, phase=WavePhase.STAGED), (Record(WavePhase.MAY_COMMIT, ""),)

    def arm(state: RankState, word: Arm) -> Step:
        held = state.held
        if rank._is_foreign(state, word.generation, word.incarnation):
            return state, ()
        if held is None or held.name != word.wave or held.phase is RankPhase.DRAINING:
            return state, ()
        armed = replace(held, phase=RankPhase.ARMED)
        return replace(state, held=armed), (Say(Armed(word.wave)),)

    patch.setattr(wave, "_hear", hear)
    patch.setattr(rank, "_arm", arm)


def ignore_the_incarnation(patch: pytest.MonkeyPatch) -> None:
    def is_foreign(state: RankState, generation: Generation, incarnation: Incarnation) -> bool:
        del incarnation
        return generation < state.generation

    patch.setattr(rank, "_is_foreign", is_foreign)


def begin_a_round_without_the_others(patch: pytest.MonkeyPatch) -> None:
    original = rank_agreed._move_on

    def move_on(state: RankState, held: Held, agreement: Agreement) -> Step:
        own = held.rounds_done if held.is_moving else NOT_MOVING
        return original(state, held, replace(agreement, rounds_done=own))

    patch.setattr(rank_agreed, "_move_on", move_on)


def let_any_resume_clear_any_halt(patch: pytest.MonkeyPatch) -> None:
    def resume(state: RankState, word: Resume) -> Step:
        halt = state.halt
        if word.incarnation != state.incarnation or not halt.status.is_active:
            return state, ()
        if halt.wish is HaltWish.RAISE:
            return state, ()
        return state, (Audit(halt.status.number),)

    patch.setattr(rank, "_resume", resume)


def leave_the_store_unfenced(patch: pytest.MonkeyPatch) -> None:
    def fence(store: SimStore, generation: Generation) -> None:
        del store, generation

    patch.setattr(SimStore, "require_lead", fence)


def use_staged_weights_that_fail_their_digest(patch: pytest.MonkeyPatch) -> None:
    original = rank._round_over

    def round_over(state: RankState, event: rank_state.RoundDone | rank_state.RoundFailed) -> Step:
        return original(state, rank_state.RoundDone(event.wave, event.number))

    patch.setattr(rank, "_round_over", round_over)


def keep_shares_over_a_cutover(patch: pytest.MonkeyPatch) -> None:
    def new_shares(state: RankState, event: rank_state.NewShares) -> Step:
        if rank._is_foreign(state, event.generation, event.incarnation):
            return state, ()
        name = event.name
        if state.ownership is rank_agreed.Ownership.OWN:
            return replace(state, served=name), (rank_state.ApplyShares(name, event.shares),)
        return replace(state, pending=event), ()

    patch.setattr(rank, "_new_shares", new_shares)


def forget_that_a_rank_withdrew(patch: pytest.MonkeyPatch) -> None:
    original = rank._repeat

    def repeat(state: RankState, held: Held, name: WaveName) -> Step:
        if not held.withdrawn:
            return original(state, held, name)
        again = Held(held.order, held.name, RankPhase.ACCEPTED)
        return replace(state, held=again), ()

    patch.setattr(rank, "_repeat", repeat)


def say_cut_over_for_every_end(patch: pytest.MonkeyPatch) -> None:
    original = rank_agreed.drop

    def drop(state: RankState, reason: DropReason) -> Step:
        state, effects = original(state, reason)
        if reason is DropReason.EXPIRED and state.outcome:
            state = replace(state, outcome=replace(state.outcome, kind=OutcomeKind.CUT_OVER))
        return state, effects

    patch.setattr(rank_agreed, "drop", drop)


def arm_before_the_record(patch: pytest.MonkeyPatch) -> None:
    original = wave._hear

    def hear(state: WaveState, number: int, heard: Heard) -> WaveStep:
        state, effects = original(state, number, heard)
        if any(isinstance(effect, Record) for effect in effects):
            effects = (*(SendArm(rank) for rank in range(len(state.heard))), *effects)
        return state, effects

    patch.setattr(wave, "_hear", hear)


def switch_on_a_controllers_word(patch: pytest.MonkeyPatch) -> None:
    original = rank._arm

    def arm(state: RankState, word: Arm) -> Step:
        state, effects = original(state, word)
        if state.held is None or state.held.phase is not RankPhase.ARMED:
            return state, effects
        state, more = rank_agreed._cut_over(state, state.held)
        return state, (*effects, *more)

    patch.setattr(rank, "_arm", arm)


def reuse_an_epoch_number(patch: pytest.MonkeyPatch) -> None:
    def highest(*_: object, **__: object) -> Epoch:
        return Epoch(0)

    patch.setattr(records, "highest_epoch", highest)


def forget_what_may_have_been_committed(patch: pytest.MonkeyPatch) -> None:
    def known_phase(recorded: WavePhase) -> WavePhase:
        del recorded
        return WavePhase.SPENT

    patch.setattr(recovery, "_known_phase", known_phase)


def believe_the_planner(patch: pytest.MonkeyPatch) -> None:
    def believe(placement: Placement) -> None:
        del placement

    patch.setattr(planning, "require_sound", believe)
    patch.setattr(waves, "require_sound", believe)


def take_a_torn_write_for_a_record(patch: pytest.MonkeyPatch) -> None:
    original = SimStore.write

    def write(store: SimStore, generation: Generation, epoch: Epoch, phase: WavePhase) -> None:
        if store.trouble() is Trouble.NONE:
            original(store, generation, epoch, phase)

    patch.setattr(SimStore, "write", write)


MUTATIONS: tuple[Mutate, ...] = (
    skip_the_base_check,
    agree_on_staged_instead_of_armed,
    drop_on_one_rank_alone,
    remember_no_high_mark,
    arm_before_all_are_staged,
    ignore_the_incarnation,
    begin_a_round_without_the_others,
    let_any_resume_clear_any_halt,
    leave_the_store_unfenced,
    use_staged_weights_that_fail_their_digest,
    keep_shares_over_a_cutover,
    forget_that_a_rank_withdrew,
    say_cut_over_for_every_end,
    arm_before_the_record,
    switch_on_a_controllers_word,
    reuse_an_epoch_number,
    forget_what_may_have_been_committed,
    believe_the_planner,
    take_a_torn_write_for_a_record,
)
