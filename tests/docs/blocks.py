"""The code blocks of README and docs, with what their info strings say of them.

A block is marked on its first line, after the fence:

    sh                 commands; `test_blocks_run.py` runs them, block after block of a page
    sh needs=WHAT      commands that cannot be run there, for want of what `NEEDS` names
    console            a transcript: its `$` lines are run, and what they print has the labels shown
    yaml               settings of the controller, which are loaded
    yaml of=WHAT       a piece of another file: it parses
    python             runs
    text               not for a machine: output, a drawing
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("api.md", "cli.md")
NEEDS = {
    "cluster": "a Kubernetes or Ray cluster",
    "docker": "a builder of images",
    "minutes": "minutes; each target of make is there",
    "stays": "somebody who ends it: it serves until then; tests/host starts and ends it",
    "venv": "an environment to install into; the gate installs the same way",
    "vllm": "vLLM and a model; benchmarks/demo_vllm starts its server the same way",
}
FENCE = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)
INDENTED = re.compile(
    r"^ {4,}(?:\$ )?(?:eplb|make |pip |helm |ray |export |python |[A-Z_]+=)", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    kind: str
    mark: str
    """What stands after the kind, for example needs=cluster; empty for none."""
    text: str

    @property
    def need(self) -> str:
        """What it needs that is not here; empty where it is run."""
        return self.mark.removeprefix("needs=") if self.kind in {"sh", "console"} else ""

    def __str__(self) -> str:
        """Name it, for a test's report."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that people write."""
    found = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    return sorted(path for path in found if path.name not in GENERATED)


def blocks_of(path: Path) -> Iterator[Block]:
    """Every block of a page, in its order, without its indent."""
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        indent, info, body = found.groups()
        kind, _, mark = info.strip().partition(" ")
        line = text.count("\n", 0, found.start()) + 1
        plain = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        yield Block(str(path.relative_to(ROOT)), line, kind, mark, plain)


def unfenced(path: Path) -> list[str]:
    """Lines that look like commands and stand in no fence."""
    return INDENTED.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
