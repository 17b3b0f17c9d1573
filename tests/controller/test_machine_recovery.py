"""A new controller, or a new rank group, goes on from what the other side knows."""

from dataclasses import replace

from eplb_service.controller.machine import step, to_load
from eplb_service.controller.machine_state import (
    DeploymentState,
    PlanEnded,
    PlanPhase,
    RankGreeted,
    Register,
    RunAsked,
    SendArmTo,
    SendOrderTo,
    WaveEnded,
)
from eplb_service.controller.records import DeploymentRecord, EpochEnd, Recovered
from eplb_service.controller.recovery import recovered_state
from eplb_service.controller.runs import obstacle
from eplb_service.domain.errors import (
    NotReady,
)
from eplb_service.domain.ids import NO_DIGEST, Epoch, Revision
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.shares import Ownership
from eplb_service.protocol.messages import (
    Dropped,
    DropReason,
    Outcome,
    OutcomeKind,
    WaveName,
)
from eplb_service.protocol.wave_state import WavePhase
from tests.controller.flying import armed, flying, said, spent
from tests.controller.group import (
    FLAT,
    PACE,
    SWAPPED,
    cut_over,
    group,
    hello,
    plan,
    run_events,
)

WIDE = placement_from_ranks([[[0], [1], [2], [3]]], num_experts=4)


def recovered(state: DeploymentState, phase: WavePhase) -> DeploymentState:
    """What a new controller knows after the old one died in this phase."""
    assert state.flight
    assert state.membership
    record = state.flight.record
    found = Recovered(
        record=DeploymentRecord(
            state.membership.identity,
            state.membership.shape,
            Ownership.OWN,
            state.membership.incarnation,
        ),
        settled=state.settled,
        open_epoch=record,
        open_end=EpochEnd(record.wave.epoch, phase, "", 0, 6.0),
        highest_epoch=record.wave.epoch,
        highest_revision=Revision(0),
        freeze=None,
        settings="{}",
    )
    return recovered_state(found, pace=PACE, now_s=9.0)


def test_dead_between_record_and_arm_the_next_controller_arms() -> None:
    old, wave = armed()
    state = recovered(old, WavePhase.MAY_COMMIT)
    state, effects = run_events(state, RankGreeted(hello(0)), RankGreeted(hello(1)))
    assert [(type(e), e.rank) for e in effects if isinstance(e, SendArmTo)] == [
        (SendArmTo, 0),
        (SendArmTo, 1),
    ]
    state, effects = run_events(state, said(0, cut_over(wave)), said(1, cut_over(wave)))
    assert [e.phase for e in effects if isinstance(e, WaveEnded)] == [WavePhase.SETTLED]


def test_a_new_controller_learns_from_the_hellos_what_was_committed() -> None:
    old, wave = armed()
    state = recovered(old, WavePhase.MAY_COMMIT)
    over = Outcome(wave, OutcomeKind.CUT_OVER, 20)
    for rank in (0, 1):
        greeting = hello(rank, placement=SWAPPED, epoch=wave.epoch)
        greeting = replace(greeting, status=replace(greeting.status, outcome=over))
        state, _ = step(state, RankGreeted(greeting))
    assert state.flight is None
    assert state.serving.wave == wave
    assert state.settled.wave == wave


def test_ranks_are_believed_once_words_have_ended_the_wave_that_they_greeted_with() -> None:
    """Found by `make fuzz`, seed 562: plans started from what nobody served, for ever."""
    old, wave = flying()
    state = recovered(old, WavePhase.ABORTED)
    settled = replace(state.settled, wave=WaveName(Epoch(1), NO_DIGEST), placement=SWAPPED)
    state = replace(state, serving=settled, settled=settled)
    state, _ = run_events(state, RankGreeted(hello(0)), RankGreeted(hello(1)))
    assert state.serving.placement is SWAPPED, "a wave in flight is not decided over"
    dropped = Dropped(wave, 20, DropReason.ABORTED)
    state, effects = run_events(state, said(0, dropped), said(1, dropped))
    assert state.flight is None
    assert (state.serving.wave.epoch, state.serving.placement) == (Epoch(0), FLAT)
    assert any(isinstance(one, Register) for one in effects)
    assert obstacle(state, plan(FLAT, SWAPPED)) is None


def test_an_order_whose_number_was_spent_is_sent_again_unchanged() -> None:
    old, wave = flying()
    state = recovered(old, WavePhase.SPENT)
    _, effects = run_events(state, RankGreeted(hello(0)))
    orders = [e for e in effects if isinstance(e, SendOrderTo)]
    assert [e.record.wave for e in orders] == [wave]


def test_a_controller_without_records_adopts_what_the_ranks_serve() -> None:
    state = group()
    again = [hello(r, incarnation=2, placement=SWAPPED, epoch=9) for r in (0, 1)]
    state, effects = run_events(state, *(RankGreeted(h) for h in again))
    assert state.serving.wave.epoch == 9
    assert isinstance(effects[-1], Register)
    _, effects = run_events(state, RunAsked(plan(SWAPPED, FLAT), 1, 5.0))
    assert spent(effects).epoch == Epoch(10)


def test_a_group_of_another_shape_starts_anew_with_numbers_that_go_on() -> None:
    state, wave = armed()
    state, _ = run_events(state, said(0, cut_over(wave)), said(1, cut_over(wave)))
    greetings = [hello(r, incarnation=2, placement=WIDE, num_ranks=4) for r in range(4)]
    state, effects = run_events(state, RankGreeted(greetings[0]))
    assert [e.first.placement for e in effects if isinstance(e, Register)] == [WIDE]
    assert to_load(state).placement is WIDE
    state, _ = run_events(state, *(RankGreeted(h) for h in greetings[1:]))
    assert state.serving.placement.digest() == state.settled.placement.digest() == WIDE.digest()
    assert state.highest_epoch == wave.epoch


def test_a_committed_wave_of_another_shape_is_settled_and_not_served() -> None:
    state, wave = armed()
    state, _ = run_events(state, said(0, cut_over(wave)))
    greetings = [hello(r, incarnation=2, placement=WIDE, num_ranks=4) for r in range(4)]
    state, effects = run_events(state, *(RankGreeted(h) for h in greetings))
    assert [e.phase for e in effects if isinstance(e, WaveEnded)] == [WavePhase.SETTLED]
    assert [e.phase for e in effects if isinstance(e, PlanEnded)] == [PlanPhase.DONE]
    assert state.serving.placement.digest() == state.settled.placement.digest() == WIDE.digest()


def test_a_new_group_is_told_to_load_what_the_old_one_committed() -> None:
    state, wave = armed()
    state, _ = run_events(state, said(0, cut_over(wave)), RankGreeted(hello(0, incarnation=2)))
    assert to_load(state).wave == wave
    again = [hello(r, incarnation=2, placement=SWAPPED, epoch=wave.epoch) for r in (0, 1)]
    state, _ = run_events(state, *(RankGreeted(h) for h in again))
    assert state.serving.wave == state.settled.wave == wave


def test_numbers_that_only_the_ranks_remember_are_not_spent_again() -> None:
    state = group()
    for rank in (0, 1):
        greeting = hello(rank, incarnation=2)
        told = replace(greeting.status, high_mark=Epoch(7))
        state, _ = run_events(state, RankGreeted(replace(greeting, status=told)))
    _, effects = run_events(state, RunAsked(plan(FLAT, SWAPPED), 1, 5.0))
    assert spent(effects).epoch == 8


def test_what_is_adopted_under_a_higher_number_is_what_the_next_group_is_told_to_load() -> None:
    state = group()
    again = [hello(r, incarnation=2, placement=SWAPPED, epoch=9) for r in (0, 1)]
    state, _ = run_events(state, *(RankGreeted(h) for h in again))
    state, _ = run_events(state, RankGreeted(hello(0, incarnation=3)))
    assert to_load(state).wave.epoch == 9


def test_nothing_starts_while_ranks_serve_different_placements() -> None:
    state = group()
    state, _ = run_events(
        state,
        RankGreeted(hello(0, incarnation=2)),
        RankGreeted(hello(1, incarnation=2, placement=SWAPPED, epoch=3)),
    )
    found = obstacle(state, plan(FLAT, SWAPPED))
    assert isinstance(found, NotReady)
    assert "rank 0 epoch 0, rank 1 epoch 3" in str(found)
    state, _ = run_events(state, RankGreeted(hello(0, incarnation=2, placement=SWAPPED, epoch=3)))
    assert state.serving.wave.epoch == 3
    assert obstacle(state, plan(SWAPPED, FLAT)) is None


def test_a_group_that_loads_what_welcome_named_greets_twice_and_serves_the_settled_epoch() -> None:
    state, wave = armed()
    state, _ = run_events(state, said(0, cut_over(wave)), said(1, cut_over(wave)))
    first = [RankGreeted(hello(rank, incarnation=2)) for rank in (0, 1)]
    state, _ = run_events(state, *first)
    assert state.serving.wave.epoch == 0
    again = [hello(rank, incarnation=2, placement=SWAPPED, epoch=wave.epoch) for rank in (0, 1)]
    state, _ = run_events(state, *(RankGreeted(h) for h in again))
    assert state.serving.wave == wave
    assert state.fault == ""
