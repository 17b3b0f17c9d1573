"""Rules, dashboards, runbook and the table of metrics name the same things; promtool agrees."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from eplb_service.domain.metric_names import METRICS, OPT_IN
from eplb_service.metrics import PrometheusRecorder
from tests.observe.dashboards import (
    DASHBOARDS,
    ROOT,
    RULES,
    dashboard,
    expressions,
    metric_names,
    panels,
)
from tests.observe.tools import hurried

pytestmark = [pytest.mark.slow]
KNOWN = {metric.name for metric in (*METRICS, *OPT_IN)}


def rules() -> list[dict[str, str]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, str]]:
    return [rule for rule in rules() if "alert" in rule]


def promtool(*words: str, given: str = "") -> tuple[int, str]:
    made = subprocess.run(
        ["promtool", *words], input=given, capture_output=True, text=True, check=False, timeout=60
    )
    return made.returncode, made.stdout + made.stderr


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    code, said = promtool("check", "rules", str(RULES))
    assert code == 0, said


def test_promtool_finds_nothing_wrong_with_the_hurried_rules(tmp_path: Path) -> None:
    (tmp_path / "hurried.yaml").write_text(hurried(RULES.read_text()))
    code, said = promtool("check", "rules", str(tmp_path / "hurried.yaml"))
    assert code == 0, said


def test_promtool_finds_nothing_wrong_with_names_and_help() -> None:
    recorder = PrometheusRecorder()
    for metric in METRICS:
        labels = tuple("x" for _ in metric.labels)
        write_one = {
            "gauge": recorder.set,
            "counter": recorder.add,
            "histogram": recorder.observe,
        }
        write_one[metric.kind](metric, labels, 1.0)
    from prometheus_client import generate_latest

    code, said = promtool("check", "metrics", given=generate_latest(recorder.registry).decode())
    assert (code, said) == (0, "")


def test_promtool_runs_the_tests_of_every_alert() -> None:
    tests = Path(__file__).parent / "eplb.rules.test.yaml"
    code, said = promtool("test", "rules", str(tests))
    assert code == 0, said
    tested = set(re.findall(r'alertname="(\w+)"', tests.read_text()))
    assert tested == {alert["alert"] for alert in alerts()}


def test_every_alert_has_a_section_in_the_runbook_and_the_other_way_round() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    sections = re.findall(r"^## (\w+)$", runbook, re.MULTILINE)
    assert sections == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        where = alert["annotations"]["runbook_url"]  # pyright: ignore
        assert where == f"docs/runbook.md#{alert['alert'].lower()}"
        assert f"{alert['alert']}" in sections
    links = re.findall(r"\]\(#(\w+)\)", runbook)
    assert set(links) <= {section.lower() for section in sections}


def test_every_metric_is_looked_at_and_none_is_looked_for_in_vain() -> None:
    looked = metric_names(RULES.read_text())
    for name in DASHBOARDS:
        looked |= metric_names(" ".join(expr for _, expr in expressions(dashboard(name))))
    assert looked == KNOWN


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_has_a_unit_a_description_and_a_question(name: str) -> None:
    for panel in panels(dashboard(name)):
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert "?" in panel["description"], panel["title"]
        assert panel["targets"], panel["title"]


def test_panels_lie_side_by_side_on_the_grid() -> None:
    for name in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in panels(dashboard(name)):
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not taken & cells, panel["title"]
            assert max(x for x, _ in cells) < 24, panel["title"]
            taken |= cells
