"""The part of the chart's schema that is the controller's settings, made from the code.

`python -m tests.deploy.settings_schema` writes it into values.schema.json (make chart-schema).
Types come from the settings tree, sentences from docs/settings.md.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eplb_service.settings.settings import Settings
from tests.architecture.sources import ROOT
from tests.deploy.trees import Json, is_list, is_tree

SCHEMA = ROOT / "deploy" / "helm" / "eplb" / "values.schema.json"
PAGE = ROOT / "docs" / "settings.md"
OWNED = {"server.host", "server.port", "server.metrics_host", "server.metrics_port"}
"""Said by other values of the chart."""
ROW = re.compile(r"^\| `[\w.]+` .*\|$", re.MULTILINE)
DROPPED = ("title", "default", "description")


def settings_schema() -> Json:
    """JSON Schema of `controller.settings`."""
    whole = Settings.model_json_schema()
    told = sentences()
    sections = {
        name: _section(name, _inlined(node, whole), told)
        for name, node in whole["properties"].items()
    }
    return {
        "description": "Settings of the controller by section; docs/settings.md has all of them.",
        "type": "object",
        "additionalProperties": False,
        "properties": {n: s for n, s in sections.items() if s["properties"]},
    }


def sentences() -> Mapping[str, str]:
    """What every setting of the controller means, with its unit, from the docs."""
    text = PAGE.read_text().partition("## The agent")[0]
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in ROW.findall(text))
    return {
        name.strip("`"): f"{unit} {means}".strip().replace("`", "")
        for name, _default, unit, means in rows
    }


def _section(name: str, node: Json, told: Mapping[str, str]) -> Json:
    fields = {
        field: {"description": told[f"{name}.{field}"], **_bare(inner)}
        for field, inner in node["properties"].items()
        if f"{name}.{field}" not in OWNED
    }
    return {
        "description": node["description"].partition("\n")[0],
        "type": "object",
        "additionalProperties": False,
        "properties": fields,
    }


def _bare(node: Json) -> Json:
    return {k: v for k, v in node.items() if k not in DROPPED}


def _inlined(node: Any, whole: Json) -> Any:
    """Put definitions in the place of references."""
    if is_list(node):
        return [_inlined(inner, whole) for inner in node]
    if not is_tree(node):
        return node
    if "$ref" in node:
        return _inlined(whole["$defs"][node["$ref"].rpartition("/")[2]], whole)
    return {name: _inlined(inner, whole) for name, inner in node.items()}


def with_settings(schema: Json) -> Json:
    """The chart's schema with this part as the code has it now."""
    schema["properties"]["controller"]["properties"]["settings"] = settings_schema()
    return schema


def main() -> None:
    """Write it."""
    schema = with_settings(json.loads(SCHEMA.read_text()))
    SCHEMA.write_text(json.dumps(schema, indent=2) + "\n")
    sys.stdout.write(f"wrote {Path(SCHEMA).relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
