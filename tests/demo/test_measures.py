"""The demo's figures are what they are called."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.demo import measures
from benchmarks.demo.ledger import NOT_TOLD, Ledger
from benchmarks.demo.records import Checked, Progress, StepRecord
from benchmarks.demo.screen import line, report
from benchmarks.demo.summary import PlanLine, complaints, summarise
from benchmarks.demo.supervisor import fitted
from benchmarks.traffic import Schedule

PLAN = PlanLine("7f3a", "yes", "done", 2, 30, 1.5, 1.05)


def record(step: int, **changes: float) -> StepRecord:
    return StepRecord(
        step=step,
        late_s=changes.get("late_s", 0.0),
        seconds=changes.get("seconds", 0.1),
        epoch=int(changes.get("epoch", 0)),
        revision=int(changes.get("revision", 0)),
        is_migrating=bool(changes.get("is_migrating", 0)),
        load=(int(changes.get("load", 10)),),
        num_installed=int(changes.get("num_installed", 0)),
    )


def ledger_of(*ranks: list[StepRecord], errors: float = 1e-7) -> Ledger:
    ledger = Ledger(num_ranks=len(ranks), first_step=0, num_steps=len(ranks[0]), num_layers=1)
    for rank, steps in enumerate(ranks):
        checks = tuple(Checked(step.step, errors) for step in steps)
        ledger.add(Progress(rank, tuple(steps), checks))
    return ledger


def test_imbalance_is_the_peak_over_the_mean_of_all_steps_together() -> None:
    load_NTL = np.array([[[10, 4], [10, 0]], [[0, 0], [20, 4]]])
    assert measures.imbalance(load_NTL).tolist() == [1.0, 1.0]
    assert measures.imbalance(load_NTL[:, :1]).tolist() == [2.0, 2.0]


def test_imbalance_without_load_is_unknown() -> None:
    assert np.isnan(measures.imbalance(np.zeros((2, 3, 1), dtype=np.int64))).all()


def test_a_step_is_late_when_one_rank_is_and_only_beyond_five_median_steps() -> None:
    late_s_NT = np.array([[0.5, 0.51, 0.0], [0.0, 0.0, 0.6]])
    assert measures.is_late(late_s_NT, median_step_s=0.1).sum() == 2


def test_a_step_that_was_never_told_is_late_and_unchecked() -> None:
    ledger = Ledger(num_ranks=1, first_step=0, num_steps=2, num_layers=1)
    ledger.add(Progress(0, (record(0),), (Checked(0, 0.0),)))
    assert measures.is_late(ledger.late_s_NT, median_step_s=0.1).sum() == 1
    assert measures.num_checked(ledger.error_NT) == 1
    assert (ledger.num_served, ledger.is_complete) == (1, False)


@pytest.mark.parametrize("error", [1e-5, 3.0, float("nan"), float("inf")])
def test_an_output_that_is_off_or_not_finite_is_wrong(error: float) -> None:
    errors_NT = np.array([[1e-7, error], [1e-7, 1e-7]])
    assert measures.num_wrong(errors_NT, tolerance=1e-5) == 1
    assert measures.num_checked(errors_NT) == 2


def test_slowest_steps_compare_whole_blocks() -> None:
    seconds = np.repeat([2.0, 1.0, 4.0, 1.0, 9.0], [200, 200, 200, 200, 50])
    migrating = np.zeros(850, dtype=np.bool_)
    migrating[[10, 450, 820]] = True
    assert measures.slowest_steps(seconds, migrating) == (4.0, 1.0)


def test_without_a_block_of_either_kind_there_is_no_ratio() -> None:
    seconds = np.ones(400)
    assert np.isnan(measures.slowest_steps(seconds, np.zeros(400, dtype=np.bool_))[0])
    assert np.isnan(measures.slowest_steps(seconds, np.ones(400, dtype=np.bool_))[1])


def test_steps_after_those_of_the_ledger_are_passed_over() -> None:
    ledger = Ledger(num_ranks=1, first_step=4, num_steps=1, num_layers=1)
    ledger.add(Progress(0, (record(4), record(5)), (Checked(4, 0.0), Checked(5, 1.0))))
    assert ledger.is_complete
    assert ledger.error_NT.tolist() == [[0.0]]


def test_missed_steps_are_those_beyond_the_paired_run_and_never_negative() -> None:
    punctual = [record(step) for step in range(4)]
    late = [record(step, late_s=0.9 * (step > 1)) for step in range(4)]
    by_pair = {
        (name, other): summarise(
            run=ledger_of(run), paired=ledger_of(alone), plans=[PLAN], bytes_per_expert=8
        ).outputs.steps_missed
        for name, run in (("late", late), ("punctual", punctual))
        for other, alone in (("late", late), ("punctual", punctual))
    }
    assert by_pair == {
        ("late", "punctual"): 2,
        ("late", "late"): 0,
        ("punctual", "late"): 0,
        ("punctual", "punctual"): 0,
    }


def test_the_summary_has_every_key_and_counts_what_was_installed(tmp_path: Path) -> None:
    hot = [record(step, load=30) for step in range(3)]
    cold = [record(step, load=10) for step in range(3)]
    moved = [
        record(step, load=20, num_installed=step, epoch=step, revision=step > 0)
        for step in range(3)
    ]
    summary = summarise(
        run=ledger_of(moved, moved), paired=ledger_of(hot, cold), plans=[PLAN], bytes_per_expert=100
    )
    path = tmp_path / "build" / "summary.json"
    summary.write(path)
    told = json.loads(path.read_text())

    want = {
        "imbalance_before": 1.5,
        "imbalance_after": 1.0,
        "imbalance_after_shares": 1.0,
        "moves_weights": 6,
        "maps_only_plans": 2,
        "steps": 3,
        "steps_checked": 3,
        "steps_wrong": 0,
        "steps_missed": 0,
        "plans_settled": 1,
        "moves": 6,
        "bytes_moved": 600,
        "slowest_step_ratio": None,
    }
    assert {key: told[key] for key in want} == want
    assert told["plans"][0]["plan_id"] == "7f3a"
    assert complaints(summary) == []
    assert "7f3a" in report(summary)


def test_wrong_unchecked_and_unmoved_runs_are_complained_of() -> None:
    steps = [record(step) for step in range(3)]
    unchecked = ledger_of(steps)
    unchecked.error_NT[0, 1] = NOT_TOLD
    summary = summarise(
        run=unchecked, paired=ledger_of(steps, errors=1.0), plans=[], bytes_per_expert=1
    )
    assert complaints(summary) == [
        "2 of 3 steps of the run were checked",
        "3 steps of the paired run had wrong outputs",
        "no plan was carried out",
        "no shares were set",
    ]


def test_the_live_line_tells_how_it_stands() -> None:
    schedule = Schedule(("c4", "book"), 2, 0.05)
    ledger = Ledger(num_ranks=1, first_step=0, num_steps=4, num_layers=1)
    assert "starting" in line(ledger, schedule, [])
    ledger.add(Progress(0, tuple(record(step, epoch=step) for step in range(3)), ()))
    shown = line(ledger, schedule, [PLAN])
    assert shown.split()[:2] == ["3", "book"]
    assert shown.endswith("7f3a yes done")


@pytest.mark.parametrize(
    ("step_s", "interval_s", "num_domains"),
    [
        (0.010, 0.045, 3),
        (0.025, 0.050, 3),
        (0.040, 0.080, 2),
        (0.041, 0.082, 2),
        (0.045, 0.0825, 2),
        (0.0515, 0.0825, 2),
    ],
)
def test_the_schedule_fits_the_machine_and_the_two_minutes(
    step_s: float, interval_s: float, num_domains: int
) -> None:
    asked = Schedule(("c4", "github", "wikipedia", "arxiv"), 400, 0.0)
    schedule = fitted(asked, step_s=step_s)
    assert schedule.interval_s == pytest.approx(interval_s)
    assert schedule.domains == asked.domains[-num_domains:]
    assert schedule.num_steps * schedule.interval_s <= 66


def test_a_machine_too_slow_for_two_minutes_takes_longer_rather_than_being_late() -> None:
    schedule = fitted(Schedule(("c4", "wikipedia", "arxiv"), 400, 0.0), step_s=0.150)
    assert schedule.interval_s == pytest.approx(0.240)
    assert schedule.domains == ("wikipedia", "arxiv")


def test_a_slow_comparison_hides_nothing_that_was_late_before_its_own_steps() -> None:
    early = [record(step, late_s=0.9 * (step < 2)) for step in range(6)]
    alone = Ledger(num_ranks=1, first_step=4, num_steps=2, num_layers=1)
    steps = tuple(record(step, late_s=0.9) for step in (4, 5))
    alone.add(Progress(0, steps, tuple(Checked(step, 0.0) for step in (4, 5))))
    found = summarise(run=ledger_of(early), paired=alone, plans=[PLAN], bytes_per_expert=8).outputs
    assert (found.steps_late, found.steps_missed) == (2, 2)
