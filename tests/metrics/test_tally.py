"""Counters of reports only grow, count nothing twice, and survive resets and losses."""

from dataclasses import replace

import numpy as np

from eplb_service.domain.ids import NO_DIGEST, Epoch, Revision
from eplb_service.domain.metric_names import (
    EXCLUDED_STEPS,
    EXCLUDED_TOKENS,
    OVERFLOW_TOKENS,
    REPORTS,
    REPORTS_LOST,
    STEP_SECONDS,
    STEPS,
    TOKENS,
)
from eplb_service.domain.report import CountedUnder, LoadReport, Phase, SentCounts, StepCounts
from eplb_service.load.tally import ReportTally

NO_IDS = np.zeros(0, dtype=np.int32)
NO_TOKENS = np.zeros(0, dtype=np.int64)


def report(
    step: int, *, reset: int = 1, phase: Phase = Phase.DECODE, counted: int = -1
) -> LoadReport:
    """Counters of `counted` steps (as many as `step` where not told), all in proportion."""
    n = step if counted < 0 else counted
    return LoadReport(
        under=CountedUnder(Epoch(0), NO_DIGEST, Revision(0)),
        phase=phase,
        step=step,
        reset=reset,
        is_closing=False,
        received=np.zeros((1, 1), dtype=np.int64),
        sent_total=NO_TOKENS,
        sent=SentCounts(NO_IDS, NO_IDS, NO_TOKENS),
        steps=StepCounts(n, 2 * n, 3 * n, 4 * n, 5 * n, 6 * n, 7 * n, 0.5 * n, 0.1 * n),
    )


def test_everything_that_a_report_says_is_added_up_once() -> None:
    tally = ReportTally(10)
    for step in (10, 20):
        for phase in Phase:
            tally.add(report(step, phase=phase), 0, is_migrating=False)
    counts = tally.take()
    assert counts[STEPS, ("serving",)] == 20
    assert counts[STEP_SECONDS, ("serving",)] == 10
    assert counts[TOKENS, ()] == 2 * 5 * 20  # each phase has tokens of its own
    assert counts[EXCLUDED_TOKENS, ("padding",)] == 6 * 20
    assert counts[OVERFLOW_TOKENS, ()] == 7 * 20
    assert [counts[EXCLUDED_STEPS, (k,)] for k in ("dummy", "warmup", "profile")] == [40, 60, 80]
    assert counts[REPORTS, ()] == 4
    assert counts[REPORTS_LOST, ()] == 0
    assert tally.take() == {}


def test_a_repeated_or_older_report_adds_nothing() -> None:
    tally = ReportTally(10)
    tally.add(report(20), 0, is_migrating=False)
    tally.take()
    tally.add(report(20), 0, is_migrating=False)
    tally.add(report(10), 0, is_migrating=False)
    assert tally.take() == {}


def test_lost_reports_are_counted_and_their_tokens_are_not_lost() -> None:
    tally = ReportTally(10)
    tally.add(report(10), 0, is_migrating=False)
    tally.add(report(40), 0, is_migrating=False)
    counts = tally.take()
    assert counts[REPORTS_LOST, ()] == 2
    assert counts[TOKENS, ()] == 5 * 40


def test_counters_that_begin_anew_are_added_whole() -> None:
    tally = ReportTally(10)
    tally.add(report(30), 0, is_migrating=False)
    tally.add(report(40, reset=2, counted=8), 0, is_migrating=True)
    counts = tally.take()
    assert counts[STEPS, ("serving",)] == 30
    assert counts[STEPS, ("migration",)] == 8
    assert counts[TOKENS, ()] == 5 * 38


def test_ranks_are_told_apart_and_a_new_group_counts_anew() -> None:
    tally = ReportTally(10)
    tally.add(report(30), 0, is_migrating=False)
    tally.add(report(10), 1, is_migrating=False)
    assert [tally.last_step(rank) for rank in range(3)] == [30, 10, None]
    tally.forget()
    tally.add(report(10), 0, is_migrating=False)
    assert tally.take()[STEPS, ("serving",)] == 50
    assert tally.last_step(1) is None


def test_counters_never_fall_whatever_is_reported() -> None:
    tally = ReportTally(10)
    tally.add(report(10), 0, is_migrating=False)
    odd = report(20)
    tally.add(replace(odd, steps=replace(odd.steps, dummy=0)), 0, is_migrating=False)
    assert tally.take()[EXCLUDED_STEPS, ("dummy",)] == 20


def test_what_migrations_cost_is_told_by_how_much_longer_steps_took() -> None:
    tally = ReportTally(10)
    slow = report(30, counted=30)
    slow = replace(slow, steps=replace(slow.steps, step_seconds=0.5 * 20 + 0.8 * 10))
    assert tally.lost_s(2) == 0
    for rank in (0, 1):
        tally.add(report(20), rank, is_migrating=False)
    assert tally.lost_s(2) == 0
    for rank in (0, 1):
        tally.add(slow, rank, is_migrating=True)
    assert round(tally.lost_s(2), 6) == 3.0
