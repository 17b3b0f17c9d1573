"""Dependencies are pinned for development, open for users, and each has a reason."""

import re
import tomllib
from pathlib import Path

from tests.architecture.sources import ROOT, text_of

OURS = "eplb-control-plane"
PIN = re.compile(r"[\w.-]+==[\w.]+")


def project() -> dict[str, list[str]]:
    """Requirements by group: the base install and each extra."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        table = tomllib.load(file)["project"]
    return {"base": table["dependencies"], **table["optional-dependencies"]}


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def pins(file: str) -> dict[str, str]:
    lines = text_of(Path("requirements") / file).splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert not [line for line in wanted if not PIN.fullmatch(line)], "not an exact pin"
    return {name_of(line): line for line in wanted}


def test_development_is_pinned_exactly() -> None:
    pinned = pins("dev.txt")
    assert pinned["torch"] == pins("constraints.txt")["torch"] == "torch==2.13.0"
    needed = {name_of(r) for group in ("base", "service", "dev") for r in project()[group]}
    assert needed - {OURS} <= set(pinned)


def test_the_base_install_leaves_room_beside_an_engine() -> None:
    closed = [requirement for requirement in project()["base"] if re.search(r"==|<", requirement)]
    assert not closed
    assert "torch" not in {name_of(requirement) for requirement in project()["base"]}


def test_every_dependency_has_its_reason() -> None:
    reasons = text_of(Path("docs/dependencies.md")).lower()
    named = {name_of(r) for group in project().values() for r in group} - {OURS}
    unexplained = [name for name in named if f"| `{name}` |" not in reasons]
    assert not unexplained
