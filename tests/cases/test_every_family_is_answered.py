"""Every reported family has a test.

A pointer names a test as path::function; a family may have several.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.cases.engines import ENGINES
from tests.cases.families import ASSERTED as OTHERS
from tests.cases.trusted import TRUSTED

ROOT = Path(__file__).resolve().parents[2]
ASSERTED = {**OTHERS, **ENGINES, **TRUSTED}

FAMILIES = range(1, 72)


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def test_every_family_is_asserted() -> None:
    named = {family.partition(" ")[0] for family in ASSERTED}
    assert named == {f"F{number:02}" for number in FAMILIES}


@pytest.mark.parametrize("pointer", sorted({p for points in ASSERTED.values() for p in points}))
def test_every_pointer_leads_to_a_test(pointer: str) -> None:
    path, _, name = pointer.partition("::")
    assert name in functions_of(path)
