"""docs/settings.md and docs/metrics.md say what the code says: every name, every default."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pydantic import BaseModel, JsonValue

from eplb_service.domain.metric_names import METRICS, OPT_IN
from eplb_service.settings.settings import Settings
from tests.architecture.sources import text_of
from worker_agent.settings.settings import AgentSettings
from worker_agent.settings.vllm import VllmSettings

PAGE = Path("docs/settings.md")
WORDED = {"endpoint": "required", "node": "the host's name"}
"""Defaults of the agent that depend on where it runs."""


def section(page: Path, heading: str) -> str:
    """The text under one heading of the second level."""
    parts = re.split(r"^## (.+)\n", text_of(page), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def rows(text: str) -> list[list[str]]:
    """Cells of every table row whose first cell names something in code font."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def leaves(model: BaseModel) -> Iterator[tuple[str, str]]:
    """Every setting by its dotted name, with its value as JSON in code font."""

    def walk(tree: Mapping[str, JsonValue], prefix: str) -> Iterator[tuple[str, str]]:
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{name}.")
            else:
                yield prefix + name, f"`{json.dumps(value)}`"

    return walk(model.model_dump(mode="json"), "")


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("EPLB_AGENT_NODE", "EPLB_AGENT_SUPERNODE"):
        monkeypatch.delenv(variable, raising=False)


def test_every_setting_of_the_controller_is_told_with_its_default() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(section(PAGE, "The controller"))}
    assert told == dict(leaves(Settings()))


@pytest.mark.usefixtures("no_environment")
def test_every_setting_of_the_agent_is_told_with_its_default() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(section(PAGE, "The agent"))}
    assert told == {**dict(leaves(AgentSettings(endpoint="here:1"))), **WORDED}


def test_every_setting_of_the_vllm_plugin_is_told_with_its_default() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(section(PAGE, "The vLLM plugin"))}
    assert told == dict(leaves(VllmSettings()))


def test_every_metric_is_told_with_its_type_and_labels() -> None:
    told = {tuple(row[:3]) for row in rows(text_of(Path("docs/metrics.md")))}
    assert told == {(f"`{m.name}`", m.kind.value, ", ".join(m.labels)) for m in (*METRICS, *OPT_IN)}
