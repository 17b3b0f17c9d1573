"""Dashboards hold against Grafana's own packages: its types, and its matrix transformation."""

import json
import subprocess
from pathlib import Path
from shutil import copyfile

import pytest

from tests.observe.dashboards import DASHBOARDS, ROOT, dashboard, panels

pytestmark = [pytest.mark.slow]
HERE = Path(__file__).parent / "grafana"
INSTALLED = ROOT / "build" / "grafana"
OPTIONS_OF = {
    "stat": ("stat", "Stat"),
    "table": ("table", "Table"),
    "timeseries": ("timeseries", "TimeSeries"),
    "heatmap": ("heatmap", "Heatmap"),
    "barchart": ("barchart", "BarChart"),
}
CONFIG_OF = {"timeseries": "GraphFieldConfig", "table": "TableFieldOptions"}
PLAIN = """
type Plain<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]?: Plain<T[K]> } : T;
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    """Grafana's packages in exact versions, installed by make: tests see no network."""
    there = INSTALLED / "package.json"
    wanted = (HERE / "package.json").read_text()
    found = there.read_text() if there.exists() else ""
    assert found == wanted, f"{INSTALLED} does not hold them; `make grafana-packages` installs them"
    copyfile(HERE / "matrix.cjs", INSTALLED / "matrix.cjs")
    return INSTALLED


def check_of(names: list[str]) -> str:
    """TypeScript that assigns every dashboard, panel option and field setting to its type."""
    lines = [
        "import type { Dashboard, GraphFieldConfig, TableFieldOptions } from '@grafana/schema';"
    ]
    for kind, (folder, name) in OPTIONS_OF.items():
        path = (
            f"@grafana/schema/dist/esm/raw/composable/{folder}/panelcfg/x/{name}PanelCfg_types.gen"
        )
        lines.append(f"import type {{ Options as {kind}Options }} from '{path}';")
    lines.append(PLAIN)
    for number, name in enumerate(names):
        tree = dashboard(name)
        for marks in tree["annotations"]["list"]:
            for own in ("expr", "titleFormat"):  # Prometheus's keys, which the schema leaves to it
                del marks[own]
        lines.append(f"export const d{number}: Plain<Dashboard> = {json.dumps(tree)};")
        for panel in panels(tree):
            kind, at = panel["type"], f"{number}_{panel['id']}"
            options = json.dumps(panel["options"])
            lines.append(f"export const o{at}: Plain<{kind}Options> = {options};")
            if kind in CONFIG_OF:
                custom = json.dumps(panel["fieldConfig"]["defaults"]["custom"])
                lines.append(f"export const c{at}: Plain<{CONFIG_OF[kind]}> = {custom};")
    return "\n".join(lines) + "\n"


def compiled(packages: Path, text: str) -> str:
    (packages / "check.ts").write_text(text)
    command = ["node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck"]
    made = subprocess.run(
        [*command, "--module", "nodenext", "--moduleResolution", "nodenext", "check.ts"],
        cwd=packages,
        capture_output=True,
        text=True,
        check=False,
    )
    return made.stdout


@pytest.mark.timeout(400)
def test_every_dashboard_has_the_types_of_grafanas_schema(packages: Path) -> None:
    text = check_of(list(DASHBOARDS))
    assert compiled(packages, text) == ""
    wrongs = {
        '"graphTooltip": 1': "DashboardCursorSync",
        '"showHeader": true': "boolean",
        '"drawStyle": "bars"': '"bars"',
    }
    broken = text
    for wrong in wrongs:
        assert wrong in text
        broken = broken.replace(wrong, wrong.split(":")[0] + ': "nonsense"')
    said = compiled(packages, broken)
    assert not [wrong for wrong, kind in wrongs.items() if kind not in said], said


@pytest.mark.timeout(400)
def test_grafana_makes_a_matrix_of_layers_and_ranks(packages: Path) -> None:
    [matrix] = [
        panel
        for panel in panels(dashboard("deployment.json"))
        if panel["title"].startswith("Load of ranks by")
    ]
    [transformation] = matrix["transformations"]
    rows = [
        {"layer": str(layer), "rank": str(rank), "value": 1 + layer / 10 + rank / 100}
        for layer in range(3)
        for rank in range(4)
    ]
    asked = json.dumps({"options": transformation["options"], "rows": rows})
    made = subprocess.run(
        ["node", "matrix.cjs"],
        cwd=packages,
        input=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    fields = json.loads(made.stdout)["fields"]
    assert [field["name"] for field in fields] == ["layer\\rank", "0", "1", "2", "3"]
    assert fields[0]["values"] == ["0", "1", "2"]
    assert fields[4]["values"] == pytest.approx([1.03, 1.13, 1.23])
