"""A new controller, or a new rank group, goes on from what the other side knows."""

from dataclasses import replace

from eplb_service.controller.machine import step
from eplb_service.controller.machine_state import (
    DeploymentState,
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
from eplb_service.domain.ids import Epoch, Revision
from eplb_service.domain.shares import Ownership
from eplb_service.protocol.messages import (
    Outcome,
    OutcomeKind,
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
