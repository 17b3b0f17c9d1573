"""One deployment's machine: a plan reaches every rank or is dropped, and nothing is forgotten."""

from dataclasses import replace

import pytest

from eplb_service.controller.machine import step
from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    EpochSpent,
    PhaseRecorded,
    PlanEnded,
    PlanPhase,
    RankGreeted,
    RankLeft,
    RankSaid,
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
from eplb_service.controller.records import DeploymentRecord, EpochEnd, Recovered
from eplb_service.controller.recovery import recovered_state
from eplb_service.controller.runs import obstacle
from eplb_service.domain.errors import (
    DeploymentBusy,
    NotReady,
    PlanOvertaken,
    RegistrationRefused,
    StaleMessage,
)
from eplb_service.domain.ids import Epoch, Revision
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.shares import Ownership
from eplb_service.protocol.messages import (
    Dropped,
    DropReason,
    Halted,
    HaltStatus,
    Idle,
    Outcome,
    OutcomeKind,
    WaveName,
    Word,
)
from eplb_service.protocol.wave_state import WavePhase
from tests.controller.group import (
    BACK,
    FLAT,
    PACE,
    SWAPPED,
    cut_over,
    group,
    hello,
    plan,
    run_events,
    staged,
)


def spent(effects: list[Effect]) -> WaveName:
    (found,) = [e for e in effects if isinstance(e, SpendEpoch)]
    return found.record.wave


def said(rank: int, word: Word, incarnation: int = 1) -> RankSaid:
    return RankSaid(rank, incarnation, word)


def flying() -> tuple[DeploymentState, WaveName]:
    """A group whose first wave's orders have left."""
    state, effects = run_events(group(), RunAsked(plan(FLAT, SWAPPED), 1, 5.0))
    wave = spent(effects)
    state, effects = run_events(state, EpochSpent(wave.epoch))
    assert [type(e) for e in effects] == [SendOrderTo, SendOrderTo]
    return state, wave


def armed() -> tuple[DeploymentState, WaveName]:
    state, wave = flying()
    state, effects = run_events(state, said(0, staged(wave)), said(1, staged(wave)))
    assert isinstance(effects[-1], RecordPhase)
    assert effects[-1].end.phase is WavePhase.MAY_COMMIT
    state, effects = run_events(state, PhaseRecorded(wave.epoch, WavePhase.MAY_COMMIT, 6.0))
    assert [type(e) for e in effects] == [SendArmTo, SendArmTo]
    return state, wave


def test_no_order_leaves_before_its_number_is_durable() -> None:
    _, effects = run_events(group(), RunAsked(plan(FLAT, SWAPPED), 1, 5.0))
    assert [type(e) for e in effects] == [SpendEpoch]


def test_nobody_is_armed_before_may_commit_is_durable() -> None:
    state, wave = flying()
    _, effects = run_events(state, said(0, staged(wave)), said(1, staged(wave)))
    assert [type(e) for e in effects] == [RecordPhase]


def test_one_word_commits_and_all_words_settle() -> None:
    state, wave = armed()
    state, effects = run_events(state, said(0, cut_over(wave)))
    assert [e.end.phase for e in effects if isinstance(e, RecordPhase)] == [WavePhase.COMMITTED]
    assert state.serving.placement is FLAT
    state, effects = run_events(state, said(1, cut_over(wave)))
    assert [e.end.phase for e in effects if isinstance(e, RecordPhase)] == [WavePhase.SETTLED]
    assert [type(e) for e in effects] == [RecordPhase, WaveEnded, PlanEnded]
    assert isinstance(effects[-1], PlanEnded)
    assert effects[-1].phase is PlanPhase.DONE
    assert state.serving.wave == wave
    assert state.serving.placement.digest() == SWAPPED.digest()
    assert state.flight is None


def test_waves_run_one_after_the_other_each_from_the_epoch_before() -> None:
    state, effects = run_events(group(), RunAsked(plan(FLAT, SWAPPED, BACK), 2, 5.0))
    first = spent(effects)
    state, effects = run_events(
        state,
        EpochSpent(first.epoch),
        said(0, staged(first)),
        said(1, staged(first)),
        PhaseRecorded(first.epoch, WavePhase.MAY_COMMIT, 6.0),
        said(0, cut_over(first)),
    )
    assert not [e for e in effects if isinstance(e, SpendEpoch)][1:]
    state, effects = run_events(state, said(1, cut_over(first)))
    (second,) = [e.record for e in effects if isinstance(e, SpendEpoch)]
    assert second.wave.epoch == first.epoch + 1
    assert second.content is not None
    assert second.content.base_epoch == first.epoch


def test_an_abort_ends_the_plan_after_the_running_wave() -> None:
    state, effects = run_events(group(), RunAsked(plan(FLAT, SWAPPED, BACK), 2, 5.0))
    wave = spent(effects)
    state, effects = run_events(
        state,
        EpochSpent(wave.epoch),
        StopAsked("p1", "asked to"),
        said(0, staged(wave)),
        said(1, staged(wave)),
        PhaseRecorded(wave.epoch, WavePhase.MAY_COMMIT, 6.0),
        said(0, cut_over(wave)),
        said(1, cut_over(wave)),
    )
    ended = [e for e in effects if isinstance(e, PlanEnded)]
    assert [(e.phase, e.num_settled, e.reason) for e in ended] == [
        (PlanPhase.STOPPED, 1, "asked to")
    ]
    assert state.run is None


def test_a_dropped_wave_stops_the_plan_only_when_every_rank_has_said_so() -> None:
    state, wave = armed()
    gone = Dropped(wave, 30, DropReason.EXPIRED)
    state, effects = run_events(state, said(0, gone))
    assert [e.end.phase for e in effects if isinstance(e, RecordPhase)] == [WavePhase.ABORTED]
    state, effects = run_events(state, PhaseRecorded(wave.epoch, WavePhase.ABORTED, 7.0))
    assert effects == [SendAbortTo(1, state.flight.record)] if state.flight else False
    state, effects = run_events(state, said(1, gone))
    assert [type(e) for e in effects] == [WaveEnded, PlanEnded]
    assert state.serving.placement is FLAT
    assert state.highest_epoch == wave.epoch


def test_an_aborted_number_is_never_spent_again() -> None:
    state, wave = armed()
    gone = Dropped(wave, 30, DropReason.EXPIRED)
    state, _ = run_events(state, said(0, gone), said(1, gone))
    _, effects = run_events(state, RunAsked(plan(FLAT, SWAPPED, plan_id="p2"), 1, 8.0))
    assert spent(effects).epoch == wave.epoch + 1


def test_words_that_contradict_each_other_fault_the_deployment() -> None:
    state, wave = armed()
    state, _ = run_events(state, said(0, cut_over(wave)))
    state, _ = run_events(state, said(1, Dropped(wave, 20, DropReason.EXPIRED)))
    assert "rank 0 cut_over, rank 1 dropped" in state.fault
    assert obstacle(state, plan(FLAT, SWAPPED, plan_id="p2")) is not None


def test_a_wave_that_nobody_stages_is_given_up_at_its_deadline() -> None:
    state, wave = flying()
    _, effects = run_events(state, Ticked(PACE.wave_deadline_s, 40.0))
    ends = [e.end for e in effects if isinstance(e, RecordPhase)]
    assert [(e.epoch, e.phase) for e in ends] == [(wave.epoch, WavePhase.ABORTED)]


def test_deadlines_stand_still_while_the_group_is_idle() -> None:
    state, _ = flying()
    state, effects = run_events(
        state, said(0, Idle(is_idle=True, step=12)), Ticked(10 * PACE.wave_deadline_s, 400.0)
    )
    assert effects == []
    state, effects = run_events(state, said(0, Idle(is_idle=False, step=12)), Ticked(2.0, 402.0))
    assert [type(e) for e in effects] == [SendOrderTo, SendOrderTo]


def test_an_order_is_said_again_to_a_rank_that_does_not_answer() -> None:
    state, wave = flying()
    state, _ = run_events(state, said(0, staged(wave)))
    _, effects = run_events(state, Ticked(PACE.nudge_interval_s, 8.0))
    assert [(type(e), e.rank) for e in effects if isinstance(e, SendOrderTo)] == [(SendOrderTo, 1)]


def test_a_restarted_group_ends_an_open_wave_by_what_it_serves() -> None:
    state, wave = armed()
    state, effects = run_events(state, RankGreeted(hello(0, incarnation=2)))
    assert [type(e) for e in effects] == [Register]
    state, effects = run_events(state, RankGreeted(hello(1, incarnation=2)))
    ends = [e.end.phase for e in effects if isinstance(e, RecordPhase)]
    assert ends == [WavePhase.ABORTED]
    assert state.flight is None
    assert state.serving.placement.digest() == FLAT.digest()
    assert state.highest_epoch == wave.epoch


def test_a_restarted_group_that_loaded_the_open_wave_settles_it() -> None:
    state, wave = armed()
    again = [hello(r, incarnation=2, placement=SWAPPED, epoch=wave.epoch) for r in (0, 1)]
    state, effects = run_events(state, *(RankGreeted(h) for h in again))
    assert [e.end.phase for e in effects if isinstance(e, RecordPhase)] == [WavePhase.SETTLED]
    assert state.serving.placement.digest() == SWAPPED.digest()


def test_hellos_and_words_of_an_older_incarnation_are_ignored() -> None:
    state = group(incarnation=5)
    with pytest.raises(StaleMessage, match="incarnation 4, but 5 is current"):
        step(state, RankGreeted(hello(0, incarnation=4)))
    halt = Halted(HaltStatus(1, is_active=True, reason="old"), 3)
    state, effects = run_events(state, said(0, halt, incarnation=4))
    assert effects == []
    assert obstacle(state, plan(FLAT, SWAPPED)) is None


def test_a_rank_that_disagrees_with_its_group_is_refused_with_both_numbers() -> None:
    other = placement_from_ranks([[[0, 1, 2], [2, 3, 0]]], num_experts=4)
    with pytest.raises(RegistrationRefused, match=r"counts 6 slots .* its group 4"):
        step(group(), RankGreeted(hello(1, placement=other)))


def test_a_halt_stops_the_plan_and_forbids_the_next() -> None:
    state, wave = flying()
    halt = Halted(HaltStatus(1, is_active=True, reason="bad digest"), 15)
    gone = Dropped(wave, 15, DropReason.HALTED)
    state, effects = run_events(state, said(0, gone), said(0, halt), said(1, gone), said(1, halt))
    assert [e.phase for e in effects if isinstance(e, PlanEnded)] == [PlanPhase.STOPPED]
    found = obstacle(state, plan(FLAT, SWAPPED, plan_id="p2"))
    assert found is not None
    assert found.code == "halted"


def test_a_plan_is_refused_while_another_runs_or_a_rank_is_away_or_it_is_overtaken() -> None:
    state, _ = flying()
    assert isinstance(obstacle(state, plan(FLAT, SWAPPED, plan_id="p2")), DeploymentBusy)
    away, _ = run_events(group(), RankLeft(1, 1))
    assert isinstance(obstacle(away, plan(FLAT, SWAPPED)), NotReady)
    assert isinstance(obstacle(group(), plan(SWAPPED, FLAT)), PlanOvertaken)


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
