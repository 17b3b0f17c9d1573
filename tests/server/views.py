"""One of every view, with NaN, infinity and absent parts where they may be."""

from dataclasses import replace
from math import inf, nan

import numpy as np

from eplb_service.controller.records import Freeze, HistoryEntry
from eplb_service.controller.views import (
    HeatView,
    HistoryView,
    ImbalanceView,
    OperationView,
    PlanningView,
    PlanView,
    RankView,
    RunningView,
    RunView,
    SharesView,
    StatusView,
    WindowView,
)
from eplb_service.domain.ids import Digest, Epoch
from eplb_service.domain.plan import (
    Answer,
    Cause,
    Finding,
    Moving,
    Origin,
    Plan,
    PlannedWave,
    Price,
    Verdict,
)
from eplb_service.domain.shares import Ownership
from eplb_service.protocol.messages import HaltStatus
from tests.wire import words


def a_status() -> StatusView:
    """A deployment where everything happens at once."""
    return StatusView(
        deployment="m/i/serve/0/g",
        epoch=41,
        revision=2,
        generation=7,
        settled_age_s=192.5,
        ranks=(
            RankView(
                0, "node-a", is_connected=True, epoch=41, phase="moving", report_age_s=0.4, step=9
            ),
            RankView(
                1, "node-b", is_connected=False, epoch=40, phase="serving", report_age_s=inf, step=8
            ),
        ),
        window=WindowView(600, 0.5, 0.4, 3),
        imbalance=ImbalanceView(3.5, 4.2, 0),
        operation=OperationView(
            is_idle=False,
            halt=HaltStatus(2, is_active=True, reason="slot digest"),
            freeze=Freeze(1e9, "ada", "audit"),
            running=RunningView("7f3a", "running", 1, 3, "moving", ""),
            planning=PlanningView(4, 1, "balanced", "policy raised"),
            drained=(1,),
            drained_so_far="safe to take out: no expert is left there",
            degraded="rank 1 is away; every expert has a replica on another rank",
        ),
        shares=SharesView(3, 1.31, 1.02, 1.03, ""),
    )


def a_quiet_status() -> StatusView:
    """A deployment without load, freeze or plan."""
    return StatusView(
        deployment="m/i/draft/0/g",
        epoch=1,
        revision=0,
        generation=7,
        settled_age_s=nan,
        ranks=(),
        window=WindowView(0, 0.0, inf, 0),
        imbalance=ImbalanceView(nan, nan, -1),
        operation=OperationView(
            is_idle=True,
            halt=HaltStatus(0, is_active=False, reason=""),
            freeze=None,
            running=None,
            planning=PlanningView(0, 0, "", ""),
        ),
    )


def a_settled_status() -> StatusView:
    """A deployment of which all ranks serve, with no plan running."""
    busy = a_status()
    running = busy.operation.running
    assert running is not None
    operation = replace(
        busy.operation,
        halt=HaltStatus(2, is_active=False, reason=""),
        running=replace(running, phase="done"),
    )
    ranks = tuple(replace(rank, is_connected=True, epoch=41) for rank in busy.ranks)
    return replace(busy, operation=operation, ranks=ranks)


def a_heat() -> HeatView:
    """Heat of two layers, one without load."""
    return HeatView(
        deployment="m/i/serve/0/g",
        layers=(0, 1),
        model_layers=(3, 4),
        tokens=np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),
        rank_load=np.array([[2.5, 3.5], [0.0, 0.0]]),
        imbalance=np.array([3.5 / 3, nan]),
        num_steps=600,
        coverage=1.0,
    )


def a_plan() -> PlanView:
    """A plan of one wave, throttled."""
    placement, order = words.a_placement(), words.an_order()
    wave = PlannedWave(order.content, placement, Ownership.OWN)
    moving = Moving(np.array([2, 0]), np.array([2_000, 0]), np.array([0.5, nan]), 0.5)
    before, after = np.array([1.5, nan]), np.array([1.0, nan])
    price = Price(2, 2_000, before, after, inf, 0.04, 0.012, 0.0, 0.9, moving)
    plan = Plan(
        plan_id="7f3a",
        policy="packing",
        cause=Cause(Origin.OPERATOR, "evening peak", "ada"),
        base_epoch=Epoch(41),
        base=Digest(9),
        waves=(wave,),
        price=price,
        heat_note="decode, 600 steps, coverage 1.00",
    )
    findings = (
        Finding("min_gain", Answer.YES, "gain is 0.50"),
        Finding("move_budget", Answer.THROTTLE, "only the first wave"),
    )
    verdict = Verdict(Answer.THROTTLE, 1, findings)
    return PlanView("m/i/serve/0/g", plan, verdict, "drafted", is_dry_run=True, drawn_at_s=1e9)


def a_run() -> RunView:
    """A plan that runs."""
    return RunView("m/i/serve/0/g", "7f3a", "running", 42, 248, 2_000_000_000_000, "wave 1 of 3")


def a_history() -> HistoryView:
    """Two lines."""
    entries = (
        HistoryEntry(1e9 + 0.25, "wave", "7f3a", 42, "settled at step 900"),
        HistoryEntry(1e9, "freeze", "", 41, "plans frozen for 60 s: audit", "ada"),
    )
    return HistoryView("m/i/serve/0/g", entries)
