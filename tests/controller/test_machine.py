"""One deployment's machine: a plan reaches every rank or is dropped, and nothing is forgotten."""

from dataclasses import replace

import pytest

from eplb_service.controller.machine import step
from eplb_service.controller.machine_state import (
    EpochSpent,
    PhaseRecorded,
    PlanEnded,
    PlanPhase,
    PlanStarted,
    RankGreeted,
    RankLeft,
    RecordPhase,
    Register,
    RunAsked,
    SendAbortTo,
    SendOrderTo,
    SpendEpoch,
    StopAsked,
    Ticked,
    WaveEnded,
)
from eplb_service.controller.runs import obstacle
from eplb_service.domain.deployment import Counting, CountMeaning
from eplb_service.domain.errors import (
    DeploymentBusy,
    NotReady,
    PlanOvertaken,
    RegistrationRefused,
    StaleMessage,
)
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.protocol.messages import (
    Dropped,
    DropReason,
    Halted,
    HaltStatus,
    Idle,
)
from eplb_service.protocol.wave_state import WavePhase
from tests.controller.flying import armed, flying, said, spent
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


def test_no_order_leaves_before_its_number_is_durable() -> None:
    _, effects = run_events(group(), RunAsked(plan(FLAT, SWAPPED), 1, 5.0))
    assert [type(e) for e in effects] == [PlanStarted, SpendEpoch]


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


def test_a_rank_that_counts_otherwise_than_its_group_is_refused() -> None:
    greeting = hello(1)
    profile = replace(greeting.profile, counting=Counting(CountMeaning.REPLICATED, 2))
    with pytest.raises(RegistrationRefused, match="replicated by 2, its group's own tokens"):
        step(group(), RankGreeted(replace(greeting, profile=profile)))
    shape = replace(greeting.shape, num_shared=1)
    with pytest.raises(RegistrationRefused, match="0 shared experts in slots, its model 1"):
        step(group(), RankGreeted(replace(greeting, shape=shape)))


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


def test_ranks_that_serve_the_same_share_one_placement_in_memory() -> None:
    """Each Hello brings all of it: hundreds of kilobytes, for every one of a thousand ranks."""
    membership = group().membership
    assert membership is not None
    first, *others = membership.known
    assert all(member.placement is first.placement for member in others)
