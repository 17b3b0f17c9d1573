"""What operators read: lower case, aligned, units always, and "no data" where there is none."""

from dataclasses import replace
from math import inf, nan
from textwrap import dedent

import numpy as np

from eplb_service.cli.show_plan import explain_plan, show_answer, show_plan, show_run
from eplb_service.cli.show_status import (
    show_config,
    show_heat,
    show_history,
    show_status,
    show_statuses,
)
from eplb_service.controller.records import HistoryEntry
from eplb_service.controller.views import (
    NO_SHARES,
    HeatView,
    HistoryView,
    ImbalanceView,
    NothingView,
    OperationView,
    PlanningView,
    RankView,
    RunView,
    StatusView,
    WindowView,
)
from eplb_service.domain.plan import Answer, Finding, Moving, Origin, Price, Verdict
from eplb_service.protocol.messages import HaltStatus
from eplb_service.server.admin_wire.plans import PlanSummary, ShownPlan, WaveSummary
from tests.server import views


def is_shown_as(shown: str, *want: str) -> None:
    """Compare with a transcript, which is indented like the code around it."""
    assert shown == "\n\n".join(dedent(part).strip("\n") for part in want)


def settled() -> StatusView:
    """Eight ranks, all well."""
    return StatusView(
        deployment="demo",
        epoch=41,
        revision=0,
        generation=7,
        settled_age_s=192.0,
        ranks=tuple(
            RankView(
                rank,
                "node-a",
                is_connected=True,
                epoch=41,
                phase="serving",
                report_age_s=0.5,
                step=900,
            )
            for rank in range(8)
        ),
        window=WindowView(300, 1.0, 2.0, 0),
        imbalance=ImbalanceView(3.5, 4.2, 0),
        operation=OperationView(
            is_idle=False,
            halt=HaltStatus(0, is_active=False, reason=""),
            freeze=None,
            running=None,
            planning=PlanningView(0, 0, "", ""),
        ),
    )


def test_ranks_that_are_away_are_named_with_what_only_they_hold() -> None:
    told = "degraded: rank 1 is away, and no other rank holds expert 4 of layer 0"
    view = settled()
    view = replace(view, operation=replace(view.operation, degraded=told))
    assert f"away         {told}" in show_status(view)


def shown_plan(answer: Answer = Answer.NO) -> ShownPlan:
    layers = np.arange(6, dtype=np.int32)
    wave = WaveSummary(layers, np.zeros((124, 4), dtype=np.int32), 3)
    price = Price(
        248,
        11_489_000_000,
        np.array([4.2, 2.8, nan]),
        np.array([1.16, 0.94, nan]),
        1240.4,
        step_s=0.04,
        expert_s=0.012,
        won_s=0.003,
        stall_s=3.7212,
        moving=Moving(np.array([124, 124, 0]), np.zeros(3, np.int64), np.full(3, 61.0), 122.0),
    )
    cause = (Origin.OPERATOR, "evening peak")
    plan = PlanSummary("7f3a", "packing", *cause, 41, (wave, wave), price, "decode, 300", "ada")
    findings = (
        Finding("min_gain", Answer.YES, "the mean falls by 70 %"),
        Finding("move_budget", answer, "248 moves exceed the budget of 96"),
    )
    waves = {Answer.NO: 0, Answer.THROTTLE: 1, Answer.YES: 2}[answer]
    return ShownPlan(
        "demo", plan, Verdict(answer, waves, findings), "drafted", is_dry_run=True, drawn_at_s=1e9
    )


def test_a_deployment_that_is_well_takes_five_lines() -> None:
    is_shown_as(
        show_status(settled()),
        """
        deployment   demo   epoch 41   generation 7   settled 3m12s ago
        ranks        8 connected, 8 at epoch 41
        window       300 steps   coverage 1.00   newest report 2.0s ago
        imbalance    mean 3.50   worst 4.20 (layer 0)
        plan         none
        """,
    )


def test_a_deployment_in_trouble_says_all_of_it() -> None:
    is_shown_as(
        show_status(views.a_status()),
        """
        deployment   m/i/serve/0/g   epoch 41.2   generation 7   settled 3m12s ago
        ranks        1 of 2 connected, 1 at epoch 41
                     rank 1 on node-b   away   epoch 40   serving   last report no data
        window       600 steps   coverage 0.50   newest report 0.4s ago   3 refused
        imbalance    mean 3.50   worst 4.20 (layer 0)
        shares       revision 2   imbalance 1.31 to 1.02 predicted   1.03 measured since
        plan         7f3a running   wave 1 of 3 settled   the next is moving
        away         rank 1 is away; every expert has a replica on another rank
        halt         2: slot digest
        drained      rank 1   safe to take out: no expert is left there
        frozen       until 2001-09-09 01:46:40Z by ada: audit
        planning     4 skipped (last: balanced)   1 failed (last: policy raised)
        """,
    )


def test_shares_that_are_not_drawn_say_why() -> None:
    view = settled()
    even = replace(NO_SHARES, even_because="the setting shares.is_automatic is off")
    shown = show_status(replace(view, shares=even))
    assert "\nshares       none are drawn: the setting shares.is_automatic is off\n" in shown
    assert "shares" not in show_status(view)


def test_without_load_there_is_no_data_and_no_number() -> None:
    is_shown_as(
        show_status(views.a_quiet_status()),
        """
        deployment   m/i/draft/0/g   epoch 1   generation 7   settled no data
        ranks        0 connected, 0 at epoch 1
        window       0 steps   coverage 0.00   newest report no data
        imbalance    no data
        plan         none
        idle         the group runs no steps; limits counted in steps stand still
        """,
    )


def test_many_ranks_apart_are_counted_and_not_all_listed() -> None:
    away = tuple(replace(rank, is_connected=False) for rank in settled().ranks * 2)
    shown = show_status(replace(settled(), ranks=away))
    assert shown.count("away") == 8
    assert "and 8 more; see -o json" in shown


def test_no_deployment_is_said_in_words() -> None:
    assert "no deployment is registered yet" in show_statuses(())


def test_a_plan_shows_promise_price_and_verdict() -> None:
    is_shown_as(
        show_plan(shown_plan()),
        """
        plan 7f3a   epoch 41 to 43   policy packing   drafted
        imbalance    mean 3.50 to 1.05   worst 4.20 to 1.16 (layer 0)
        moves        248 slots   10.7 GiB in 248 transfers   2 waves   about 122 s
        pay-back     after 1240 steps   3.00 of 40.0 ms won a step, 12.0 ms experts, 3721.2 ms lost
        heat         decode, 300
        verdict      no   move_budget: 248 moves exceed the budget of 96
        """,
    )


def test_a_throttled_plan_says_to_how_many_waves() -> None:
    assert "verdict      throttle to 1 wave   move_budget:" in show_plan(
        shown_plan(Answer.THROTTLE)
    )


def test_the_worst_layer_may_be_another_one_after() -> None:
    view = shown_plan()
    price = replace(view.plan.price, imbalance_after=np.array([1.0, 1.2, nan]), payback_steps=inf)
    shown = show_plan(replace(view, plan=replace(view.plan, price=price)))
    assert "worst 4.20 (layer 0) to 1.20 (layer 1)" in shown
    assert "pay-back     never within 1e+09 steps" in shown
    price = replace(price, payback_steps=144280161717449216.0)
    shown = show_plan(replace(view, plan=replace(view.plan, price=price)))
    assert "pay-back     never within 1e+09 steps" in shown


def test_explaining_a_plan_names_every_gate_and_wave() -> None:
    explained = explain_plan(shown_plan())
    assert explained.startswith(show_plan(shown_plan()))
    is_shown_as(
        explained.removeprefix(show_plan(shown_plan()) + "\n"),
        """
        drawn        2001-09-09 01:46:40Z   judged as an operator's: gates only annotate it
        asked by     ada
        reason       evening peak
        """,
        """
        gate          answer   why
        min_gain      yes      the mean falls by 70 %
        move_budget   no       248 moves exceed the budget of 96
        """,
        """
        wave   epoch   layers   transfers   rounds
           1      42   0-5            124        3
           2      43   0-5            124        3
        """,
    )


def test_nothing_to_do_names_its_reason() -> None:
    shown = show_answer(NothingView("demo", "balanced", "the mean is 1.02, below 1.15"))
    assert shown == "nothing to do: balanced: the mean is 1.02, below 1.15"


def test_a_run_shows_what_was_moved() -> None:
    is_shown_as(
        show_run(RunView("demo", "7f3a", "running", 42, 1, 1536, "wave 2 of 3")),
        """
        plan 7f3a   running   epoch 42
        moved        1 slot   1.5 KiB
        state        wave 2 of 3
        """,
    )


def test_heat_names_the_hottest_experts_and_the_busiest_rank() -> None:
    view = HeatView(
        deployment="demo",
        layers=(0, 10),
        model_layers=(3, 13),
        tokens=np.array([[40.0, 60.0], [0.0] * 2]),
        rank_load=np.array([[25.0, 75.0], [0.0, 0.0]]),
        imbalance=np.array([1.5, nan]),
        num_steps=300,
        coverage=1.0,
    )
    is_shown_as(
        show_heat(view),
        "deployment   demo   300 steps   coverage 1.00",
        """
        layer   model layer   tokens   imbalance   busiest rank      hottest experts
            0             3      100        1.50   rank 1 (75.0 %)   1 (60.0 %), 0 (40.0 %)
           10            13        0     no data   no data           no data
        """,
    )


def test_history_is_a_table_of_moments() -> None:
    entries = (
        HistoryEntry(1e9, "wave", "7f3a", 42, "settled at step 900"),
        HistoryEntry(1e9 - 1, "freeze", "", 41, "plans frozen for 60 s: audit", "ada"),
    )
    is_shown_as(
        show_history(HistoryView("demo", entries)),
        """
        time                   kind     epoch   plan   who   what
        2001-09-09 01:46:40Z   wave        42   7f3a   -     settled at step 900
        2001-09-09 01:46:39Z   freeze      41   -      ada   plans frozen for 60 s: audit
        """,
    )
    assert show_history(HistoryView("demo", ())) == "nothing has happened to demo yet"


def test_settings_are_shown_by_name() -> None:
    is_shown_as(
        show_config({"gates.min_gain": "0.05", "budget.max_moves": "96"}),
        """
        setting            value
        budget.max_moves   96
        gates.min_gain     0.05
        """,
    )


def test_everything_shown_is_plain_ascii() -> None:
    everything = [show_status(views.a_status()), explain_plan(shown_plan())]
    assert all(text.isascii() for text in everything)
