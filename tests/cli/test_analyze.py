"""Does it pay? Three answers, each with its numbers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eplb_service.controller.views import NothingView, PlanView
from eplb_service.domain.plan import Answer, Finding, Verdict
from tests.cli.conftest import Ctl
from tests.server import views
from tests.server.desks import Operators

TIMES = ("--step-ms", "40", "--expert-ms", "12", "--stall-ms", "900")
NUMBERS = ("--imbalance-now", "1.40", "--imbalance-then", "1.05", *TIMES)


def test_f71_all_five_numbers_are_said(ctl: Ctl) -> None:
    ran = ctl("analyze", *NUMBERS, "--interval-steps", "3000", "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    tree = json.loads(ran.out)
    assert tree["advice"] == "worth_trying"
    numbers = ("expert_ms_then", "won_ms", "payback_steps", "stall_ms", "interval_steps")
    assert [tree[name] for name in numbers] == pytest.approx([9, 3, 300, 900, 3000])
    shown = ctl("analyze", *NUMBERS, "--interval-steps", "3000").out
    for words in (
        "advice       worth trying",
        "1.400 to 1.050",
        "40.0 ms",
        "12.00 to 9.00 ms on the slowest rank   3.00 ms won a step",
        "900 ms lost to the plan",
        "300 steps   to be within 3000 steps",
    ):
        assert words in shown


def test_what_is_not_won_back_in_time_is_not_now(ctl: Ctl) -> None:
    ran = ctl("analyze", *NUMBERS, "--interval-steps", "299")
    assert (ran.code, "not now" in ran.out) == (0, True)


def test_without_times_there_is_not_enough_evidence(ctl: Ctl) -> None:
    ran = ctl("analyze", "--imbalance-now", "1.4", "--imbalance-then", "1.05", "--step-ms", "40")
    assert ran.code == 0
    assert "not enough evidence" in ran.out
    assert "say --expert-ms, --stall-ms" in ran.out


def load(folder: Path, *windows: list[list[int]]) -> str:
    path = folder / "load.npz"
    np.savez(path, windows=np.array(windows))
    return str(path)


def test_a_gain_is_measured_on_windows_that_the_plan_did_not_see(ctl: Ctl, tmp_path: Path) -> None:
    early, late = [[9000, 9000, 1000, 1000]], [[9000, 1000, 5000, 5000]]
    words = ("--ranks", "2", *TIMES, "--policy", "packing", "-o", "json")
    same = json.loads(ctl("analyze", load(tmp_path, early, early), *words).out)
    assert same["imbalance_then"] == pytest.approx(1.0)
    other = json.loads(ctl("analyze", load(tmp_path, early, late), *words).out)
    assert (other["imbalance_then"], other["advice"]) == (pytest.approx(1.4), "not_now")
    assert "planned for 1 windows and measured on the 1 after" in other["source"]


def test_a_drop_that_counting_alone_may_feign_is_no_reason(ctl: Ctl, tmp_path: Path) -> None:
    few = [[14, 14, 10, 10]]
    words = ("--ranks", "2", *TIMES, "-o", "json")
    tree = json.loads(ctl("analyze", load(tmp_path, few), *words).out)
    assert 0 < tree["imbalance_now"] - tree["imbalance_then"] < tree["noise"]
    assert tree["advice"] == "not_now"
    fewer = json.loads(ctl("analyze", load(tmp_path, [[3, 1, 1, 1]]), *words).out)
    assert fewer["advice"] == "not_enough_evidence"
    assert "tokens per expert" in fewer["text"]


def a_priced_plan() -> PlanView:
    plan = views.a_plan()
    price = replace(plan.plan.price, imbalance_before=np.array([1.4]))
    price = replace(price, imbalance_after=np.array([1.05]))
    return replace(plan, plan=replace(plan.plan, price=price))


def test_the_controllers_own_measurements_are_taken(ctl: Ctl, operators: Operators) -> None:
    operators.answer = a_priced_plan()
    tree = json.loads(ctl("analyze", "-o", "json").out)
    assert (tree["advice"], tree["held_back_by"]) == ("worth_trying", None)
    numbers = ("expert_ms_then", "won_ms", "payback_steps", "stall_ms")
    assert [tree[name] for name in numbers] == pytest.approx([9, 3, 300, 900])
    operators.answer = replace(
        a_priced_plan(), verdict=Verdict(Answer.NO, 0, (Finding("freeze", Answer.NO, "till 9"),))
    )
    assert "held back by freeze" in ctl("analyze").out


def test_a_window_that_is_too_short_is_no_evidence(ctl: Ctl, operators: Operators) -> None:
    lack = Finding("insufficient_samples", Answer.NO, "3 steps, at least 20 are needed")
    operators.answer = replace(a_priced_plan(), verdict=Verdict(Answer.NO, 0, (lack,)))
    ran = ctl("analyze")
    assert "not enough evidence" in ran.out
    assert "3 steps, at least 20 are needed" in ran.out


@pytest.mark.parametrize(
    ("reason", "advice"), [("balanced", "not_now"), ("insufficient_samples", "not_enough_evidence")]
)
def test_where_no_plan_is_drawn_the_reason_is_told(
    ctl: Ctl, operators: Operators, reason: str, advice: str
) -> None:
    operators.statuses = operators.statuses[:1]
    operators.answer = NothingView("m/i/serve/0/g", reason, "so it is")
    tree = json.loads(ctl("analyze", "-o", "json").out)
    assert tree["advice"] == advice
    assert "so it is" in tree["text"]


@pytest.mark.parametrize(
    "words",
    [
        ("--imbalance-now", "1.4"),
        ("load.npz", "--imbalance-now", "1.4", "--imbalance-then", "1"),
        ("--policy", "packing,static"),
        ("--imbalance-now", "0", "--imbalance-then", "1"),
    ],
)
def test_what_makes_no_sense_is_refused(ctl: Ctl, words: tuple[str, ...]) -> None:
    ran = ctl("analyze", *words)
    assert (ran.code, ran.out) == (2, "")
