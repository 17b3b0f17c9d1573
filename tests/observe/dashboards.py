"""Reading dashboards and rules as they are shipped."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana"
RULES = ROOT / "deploy" / "prometheus" / "eplb.rules.yaml"
DASHBOARDS = ("fleet.json", "deployment.json", "controller.json")

Tree = dict[str, Any]
"""JSON as Grafana reads it; its own schema package checks the types."""


def dashboard(name: str) -> Tree:
    """One dashboard."""
    return json.loads((FOLDER / name).read_text())


def panels(tree: Tree) -> list[Tree]:
    """Its panels."""
    return tree["panels"]


def expressions(tree: Tree) -> Iterator[tuple[str, str]]:
    """Every expression with where it stands: panels, variables, annotations."""
    for panel in panels(tree):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for marks in tree["annotations"]["list"]:
        yield f"annotation {marks['name']}", marks["expr"]
    for variable in tree["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", str(variable.get("query", "")))
        if found:
            yield f"variable {variable['name']}", found[1]


def metric_names(text: str) -> set[str]:
    """Names of our metrics in expressions; a histogram's series by its family."""
    names = set(re.findall(r"\beplb_[a-z0-9_]+", text))
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}
