"""Variables and flags of the programs that pages name are there."""

import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from eplb_service.cli.keys import INSECURE_VARIABLE, VARIABLES
from eplb_service.host.main import service_parser
from eplb_service.settings.settings import Settings
from tests.architecture.test_settings_are_documented import leaves
from tests.docs.blocks import ROOT, pages
from worker_agent.settings.settings import AgentSettings
from worker_agent.settings.vllm import VllmSettings

COMMANDS = ("up", "run", "down", "store backup", "store restore")
OTHERS = {
    "EPLB_ENDPOINT",
    "EPLB_CONTEXT",
    "EPLB_CONTEXTS",
    INSECURE_VARIABLE,
    *VARIABLES.values(),
    "EPLB_SECTION__NAME",
    "EPLB_AGENT_NAME",
    "EPLB_AGENT_SECTION__NAME",
    "EPLB_SERVICE_HOST",
}
"""Of eplbctl, how those of settings are formed, and one that Kubernetes sets."""
TEXT_OF_THE_LIST = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
TEXT = {page.name: page.read_text(encoding="utf-8") for page in pages()}


def variables(model: BaseModel, prefix: str) -> Iterator[str]:
    """What the environment may say of a tree of settings."""
    for name, _ in leaves(model):
        yield f"{prefix}_{name.upper().replace('.', '__')}"


def test_every_variable_exists() -> None:
    known = {
        *variables(Settings(), "EPLB"),
        *variables(AgentSettings(endpoint="here:1"), "EPLB_AGENT"),
        *variables(VllmSettings(), "EPLB_VLLM"),
        *OTHERS,
    }
    found = {
        (page, name)
        for page, text in TEXT.items()
        for name in re.findall(r"\bEPLB_[A-Z_]*[A-Z]\b(?!_)", text)
    }
    assert len(found) > 10
    assert {one for one in found if one[1] not in known} == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_eplb_service_exists(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        service_parser().parse_args([*command.split(), "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    said = rf"eplb-service {command}((?: (?!eplb)[^\s`#]+)*)"
    named = {
        flag
        for text in TEXT.values()
        for words in re.findall(said, text)
        for flag in re.findall(r"(?<!\S)--[a-z-]+", words)
    }
    assert named <= known


def test_every_page_is_listed() -> None:
    listed = set(re.findall(r"\]\(([a-z]+\.md)\)", TEXT_OF_THE_LIST))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
