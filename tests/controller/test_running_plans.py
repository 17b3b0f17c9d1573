"""A plan that runs: nothing replaces it, it ends in time, and what holds it up is said."""

import asyncio
from dataclasses import replace

import pytest

from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    EpochSpent,
    Event,
    PhaseRecorded,
    PlanEnded,
    PlanPhase,
    RankGreeted,
    RankLeft,
    RecordPhase,
    RunAsked,
    SpendEpoch,
    Ticked,
)
from eplb_service.controller.plan_book import NUM_KEPT, KeptPlan, PlanBook
from eplb_service.controller.runs import waits_for
from eplb_service.controller.views import PlanView
from eplb_service.domain.errors import DeploymentBusy
from eplb_service.domain.plan import Answer, Verdict
from eplb_service.protocol.messages import Dropped, DropReason, Idle
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
    staged,
)
from tests.controller.office import act, office
from tests.controller.test_desks import ANY, ready

YES = Verdict(Answer.YES, 1, ())


def kept(plan_id: str) -> KeptPlan:
    return KeptPlan(
        plan(FLAT, SWAPPED, plan_id=plan_id),
        YES,
        PlanPhase.DRAFTED,
        is_dry_run=True,
        drawn_at_s=1.0,
        base=FLAT,
    )


def between_waves(event: Event) -> tuple[DeploymentState, list[Effect]]:
    """A plan of two waves, of which the first settles just after the event."""
    state, effects = run_events(group(), RunAsked(plan(FLAT, SWAPPED, FLAT), 2, 5.0))
    wave = spent(effects)
    state, _ = run_events(
        state,
        EpochSpent(wave.epoch),
        said(0, staged(wave)),
        said(1, staged(wave)),
        PhaseRecorded(wave.epoch, WavePhase.MAY_COMMIT, 6.0),
        said(0, cut_over(wave)),
    )
    return run_events(state, event, said(1, cut_over(wave)))


async def test_the_same_plan_drawn_again_leaves_the_running_one_alone() -> None:
    async with office() as o:
        await ready(o)
        first = await o.controller.acts.rebalance(act(), ANY)
        assert isinstance(first, PlanView)
        again = await o.controller.operators.plan(ANY)
        assert isinstance(again, PlanView)
        assert again.plan.plan_id == first.plan.plan_id
        with pytest.raises(DeploymentBusy):
            await o.controller.acts.rebalance(act(), ANY)
        assert (await o.controller.operators.run("", first.plan.plan_id)).phase == "running"
        assert (await o.controller.acts.abort(act(), first.plan.plan_id)).phase == "running"
        await o.settle()
        assert (await o.controller.operators.run("", first.plan.plan_id)).phase == "done"


async def test_of_two_starts_at_one_time_one_is_busy_and_the_other_runs() -> None:
    async with office() as o:
        await ready(o)
        one = await o.controller.operators.plan(ANY)
        other = await o.controller.operators.plan(replace(ANY, policy="random"))
        assert isinstance(one, PlanView)
        assert isinstance(other, PlanView)
        ids = [one.plan.plan_id, other.plan.plan_id]
        assert ids[0] != ids[1]
        answers = await asyncio.gather(
            *(o.controller.acts.apply(act(), plan_id) for plan_id in ids), return_exceptions=True
        )
        assert [isinstance(a, DeploymentBusy) for a in answers] == [False, True]
        (view,) = await o.controller.operators.status("")
        assert view.operation.running is not None
        assert (view.operation.running.plan_id, view.operation.running.phase) == (ids[0], "running")
        assert (await o.controller.operators.explain("", ids[1])).phase == PlanPhase.DRAFTED


def test_a_running_plan_is_kept_however_many_are_drawn() -> None:
    book = PlanBook()
    book.keep(kept("runs"))
    book.started("runs")
    for number in range(2 * NUM_KEPT):
        book.keep(kept(str(number)))
    assert book.find("runs").phase is PlanPhase.RUNNING
    book.wave_settled("runs", moves=3, num_bytes=5)
    book.ended("runs", PlanPhase.STOPPED, "aborted")
    book.started("runs")
    again = book.find("runs")
    assert (again.moves, again.num_settled, again.ending) == (0, 0, "")


def test_a_plan_ends_when_a_rank_stays_away_between_its_waves() -> None:
    state, effects = between_waves(RankLeft(1, 1))
    assert not [e for e in effects if isinstance(e, SpendEpoch)]
    assert waits_for(state) == "ranks [1] are not connected"
    state, effects = run_events(state, Ticked(PACE.wave_deadline_s - 1, 40.0))
    assert effects == []
    state, effects = run_events(state, Ticked(1.0, 41.0))
    (ended,) = [e for e in effects if isinstance(e, PlanEnded)]
    assert (ended.phase, ended.num_settled) == (PlanPhase.STOPPED, 1)
    assert ended.reason == "its next wave could not start for 30 s: ranks [1] are not connected"
    assert state.run is None


def test_a_plan_goes_on_when_the_rank_is_back_in_time() -> None:
    state, _ = between_waves(RankLeft(1, 1))
    back = hello(1, placement=SWAPPED, epoch=state.serving.wave.epoch)
    state, _ = run_events(state, Ticked(20.0, 40.0))
    _, effects = run_events(state, RankGreeted(back))
    assert [type(e) for e in effects] == [SpendEpoch]


def test_a_plan_of_an_idle_group_waits_for_its_next_step() -> None:
    state, effects = between_waves(said(0, Idle(is_idle=True, step=21)))
    assert not [e for e in effects if isinstance(e, SpendEpoch)]
    state, effects = run_events(state, Ticked(86_400.0, 90_000.0))
    assert effects == []
    assert waits_for(state) == "the group is idle"
    _, effects = run_events(state, said(0, Idle(is_idle=False, step=22)))
    assert [type(e) for e in effects] == [SpendEpoch]


def test_a_rank_that_went_away_idle_does_not_stop_the_clock() -> None:
    state, wave = flying()
    state, _ = run_events(state, said(0, Idle(is_idle=True, step=12)), RankLeft(0, 1))
    _, effects = run_events(state, Ticked(PACE.wave_deadline_s, 40.0))
    ends = [e.end for e in effects if isinstance(e, RecordPhase)]
    assert [(e.epoch, e.phase) for e in ends] == [(wave.epoch, WavePhase.ABORTED)]


def test_an_aborted_wave_says_whose_word_is_missing_and_what_a_new_plan_waits_for() -> None:
    state, wave = armed()
    gone = Dropped(wave, 30, DropReason.EXPIRED)
    state, _ = run_events(state, said(0, gone), RankLeft(1, 1))
    text = waits_for(state)
    assert "epoch 1 is aborted: rank 0 dropped it" in text
    assert "ranks [1] have not said so" in text
    assert "ranks [1] are not connected" in text
    with pytest.raises(DeploymentBusy, match=r"p1 is running \(epoch 1 is aborted"):
        run_events(state, RunAsked(plan(FLAT, SWAPPED, plan_id="p2"), 1, 5.0))


def test_a_throttled_plan_stops_after_the_waves_that_it_was_allowed() -> None:
    state, effects = run_events(group(), RunAsked(plan(FLAT, SWAPPED, FLAT), 1, 5.0))
    wave = spent(effects)
    state, effects = run_events(
        state,
        EpochSpent(wave.epoch),
        said(0, staged(wave)),
        said(1, staged(wave)),
        PhaseRecorded(wave.epoch, WavePhase.MAY_COMMIT, 6.0),
        said(0, cut_over(wave)),
        said(1, cut_over(wave)),
    )
    (ended,) = [e for e in effects if isinstance(e, PlanEnded)]
    assert (ended.phase, ended.num_settled) == (PlanPhase.STOPPED, 1)
    assert ended.reason == "throttled to 1 of 2 waves"
    assert state.serving.placement.digest() == SWAPPED.digest()


async def test_a_rebalance_that_is_judged_no_is_put_aside_and_told() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.set_config(act(), {"gates.min_gain": "0.9"})
        found = await o.controller.acts.rebalance(act(reason="hot"), ANY)
        assert isinstance(found, PlanView)
        assert (found.phase, found.verdict.answer) == (PlanPhase.REJECTED, Answer.NO)
        for _ in range(20):  # the line is written by a task of its own
            await asyncio.sleep(0)
        lines = (await o.controller.operators.history("", 5)).entries
        assert lines[0].text.startswith("plan no: gain: ")
