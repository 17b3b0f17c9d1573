"""The files of the repository and their syntax trees, for the tests of this folder."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOUSES = ("eplb_service", "worker_agent", "moe_runtime")
GENERATED = "proto/gen/"


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is committed or about to be, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return tuple(Path(name) for name in sorted(set(listed.split("\0"))) if is_present(name))


def is_present(name: str) -> bool:
    """Whether a listed name is a file now; one deleted but not yet committed is listed too."""
    return bool(name) and (ROOT / name).is_file()


def written_by_hand() -> Iterator[Path]:
    """Every file but the generated ones."""
    return (path for path in repository_files() if not str(path).startswith(GENERATED))


def python_files(*folders: str) -> Iterator[Path]:
    """Python files written by hand, of the named top folders or of all."""
    for path in written_by_hand():
        if path.suffix == ".py" and (not folders or path.parts[0] in folders):
            yield path


@cache
def text_of(path: Path) -> str:
    """The content of a file."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(text_of(path), filename=str(path))
