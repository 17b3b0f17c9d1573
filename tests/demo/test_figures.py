"""Measurements keep their limits, or say which they do not."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.figures import Figure, broken, table, write
from benchmarks.ingest.shape import NUM_RANKS, SENT_EVERY, Deployment
from benchmarks.run import MEASUREMENTS
from eplb_service.domain.report import Phase
from eplb_service.load.group import Group, WindowTerms
from eplb_service.load.windows import LoadWindows


@pytest.mark.parametrize(
    ("value", "limit", "is_broken"),
    [(1.0, 1.0, False), (1.1, 1.0, True), (float("nan"), 1.0, True), (9.0, None, False)],
)
def test_a_figure_over_its_limit_or_without_a_value_is_broken(
    value: float, limit: float | None, *, is_broken: bool
) -> None:
    figure = Figure("ratio", value, "", limit)
    assert bool(broken([figure])) is is_broken
    assert ("OVER THE LIMIT" in table("all", [figure])) is is_broken


def test_figures_are_written_for_machines(tmp_path: Path) -> None:
    path = write("planner", [Figure("moves", 12.0, "slots")], tmp_path / "build")
    assert path.name == "bench-planner.json"
    assert json.loads(path.read_text())["figures"] == [
        {"name": "moves", "value": 12.0, "unit": "slots", "at_most": None}
    ]


def test_every_measurement_has_a_name() -> None:
    assert set(MEASUREMENTS) == {"planner", "ingest", "forward", "layer", "page", "scrape"}


def test_simulated_ranks_report_what_a_window_takes() -> None:
    deployment = Deployment(0)
    hellos = [deployment.hello(rank) for rank in range(NUM_RANKS)]
    group = Group(
        hellos[0].status.served.epoch,
        deployment.placement,
        tuple(hello.profile for hello in hellos),
        hellos[0].shape.top_k,
    )
    windows = LoadWindows(group, WindowTerms(report_steps=10, interval_steps=50))
    for number in (1, 5, SENT_EVERY, 2 * SENT_EVERY):
        report = deployment.report(number)
        assert bool(len(report.sent.tokens)) is (number % SENT_EVERY == 0)
        for rank in range(NUM_RANKS):
            windows.add(report, rank)  # raises where tokens sent and received differ

    window = windows.window(Phase.DECODE)
    assert (window.num_steps, window.coverage) == (150, 1.0)
    assert len(np.unique(window.slot_tokens)) == 1
