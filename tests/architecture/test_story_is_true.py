"""Every name in code font in docs/story.md is a part of the code, in the room that it names."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.architecture.sources import HOUSES, python_files, text_of, tree_of

NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


def names_of(path: Path) -> Iterator[str]:
    """Its rooms, itself and what it defines, each by every ending of its full name."""
    module = path.with_suffix("").parts
    for end in range(1, len(module) + 1):
        yield from endings(module[:end])
    for node in tree_of(path).body:
        for name in defined(node):
            yield from endings((*module, *name))


def endings(parts: Sequence[str]) -> Iterator[str]:
    """a.b.c, b.c and c."""
    return (".".join(parts[start:]) for start in range(len(parts)))


def defined(node: ast.stmt) -> Iterator[tuple[str, ...]]:
    """What one statement of a module defines; methods and fields behind their class."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield (node.name,)
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, inner.name
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                yield node.name, inner.target.id


def test_every_name_in_the_story_exists() -> None:
    known = {name for path in python_files(*HOUSES) for name in names_of(path)}
    told = set(NAME.findall(text_of(Path("docs/story.md"))))
    assert told
    missing = sorted(told - known)
    assert not missing
