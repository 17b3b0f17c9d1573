"""Nothing grows past the size at which one reads it in one go.

The caps are those of docs/architecture.md; what is let off stands in exemptions.py. A docstring
does not count towards a function: words that help should not cost code.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture import exemptions
from tests.architecture.sources import HOUSES, ROOT, python_files, text_of, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
CODE = (*HOUSES, "benchmarks")


@dataclass(frozen=True, slots=True)
class Sized:
    """One thing and its size."""

    name: str
    size: int


def functions(tree: ast.AST) -> Iterator[tuple[str, Function]]:
    """Every function with its name inside the module, methods as Class.method."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node.name, node
        if isinstance(node, Function | ast.ClassDef):
            for inner, function in functions(node):
                yield f"{node.name}.{inner}", function


def classes(path: Path) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef))


def lines_of_code(node: Function) -> int:
    """Lines from `def` to the end, the docstring left out."""
    docstring = node.body[0] if ast.get_docstring(node) is not None else None
    words = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - words


def num_parameters(node: Function) -> int:
    """Parameters that a caller gives; self and cls are not."""
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    given = [argument for argument in named if argument.arg not in {"self", "cls"}]
    return len(given) + (node.args.vararg is not None) + (node.args.kwarg is not None)


def decorators(node: Function | ast.ClassDef) -> set[str]:
    """Names of the decorators: `dataclass` for @dataclass(frozen=True)."""
    return {
        ast.unparse(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2]
        for d in node.decorator_list
    }


def public_methods(node: ast.ClassDef) -> set[str]:
    """Methods by name; properties read like fields and are not counted."""
    return {
        item.name
        for item in node.body
        if isinstance(item, Function)
        and not item.name.startswith("_")
        and not decorators(item) & {"property", "cached_property", "setter"}
    }


def modules_by_lines() -> Iterator[Sized]:
    for path in python_files():
        yield Sized(str(path), len(text_of(path).splitlines()))


def functions_by_lines() -> Iterator[Sized]:
    for path in python_files(*CODE):
        for name, function in functions(tree_of(path)):
            yield Sized(f"{path}::{name}", lines_of_code(function))


def functions_by_parameters() -> Iterator[Sized]:
    for path in python_files(*CODE):
        for name, function in functions(tree_of(path)):
            yield Sized(f"{path}::{name}", num_parameters(function))


def classes_by_lines() -> Iterator[Sized]:
    for path in python_files(*CODE):
        for node in classes(path):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Sized(f"{path}::{node.name}", lines)


def classes_by_public_methods() -> Iterator[Sized]:
    for path in python_files(*CODE):
        for node in classes(path):
            yield Sized(f"{path}::{node.name}", len(public_methods(node)))


def dataclasses_by_fields() -> Iterator[Sized]:
    for path in python_files(*CODE):
        for node in classes(path):
            if "dataclass" in decorators(node):
                fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
                yield Sized(f"{path}::{node.name}", len(fields))


@pytest.mark.parametrize(
    ("sized", "cap", "exempt"),
    [
        (modules_by_lines, 300, exemptions.MODULE),
        (functions_by_lines, 40, exemptions.FUNCTION),
        (functions_by_parameters, 6, exemptions.PARAMETERS),
        (classes_by_lines, 150, exemptions.CLASS),
        (classes_by_public_methods, 8, exemptions.PUBLIC_METHODS),
        (dataclasses_by_fields, 10, exemptions.FIELDS),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_nothing_is_larger_than_its_cap(
    sized: Callable[[], Iterator[Sized]], cap: int, exempt: dict[str, str]
) -> None:
    found = list(sized())
    assert found, "no code was looked at"
    too_large = [s for s in found if s.size > cap and not exemptions.is_exempt(s.name, exempt)]
    assert not too_large, f"over the cap of {cap}:\n" + "\n".join(
        f"  {s.name}: {s.size}" for s in too_large
    )


@pytest.mark.parametrize(
    ("code", "lines", "parameters"),
    [
        ("def f(self, a, *, b=1, **rest):\n    pass\n", 2, 3),
        ("async def f(cls, *a):\n    '''One.\n\n    Two.\n    '''\n    return a\n", 2, 1),
    ],
)
def test_a_function_is_measured_without_self_and_docstring(
    code: str, lines: int, parameters: int
) -> None:
    [(_, function)] = functions(ast.parse(code))
    assert (lines_of_code(function), num_parameters(function)) == (lines, parameters)


def test_every_exemption_names_something_that_exists() -> None:
    lists = (
        exemptions.MODULE,
        exemptions.FUNCTION,
        exemptions.PARAMETERS,
        exemptions.CLASS,
        exemptions.PUBLIC_METHODS,
        exemptions.FIELDS,
    )
    named = {name.partition("::")[0] for exempt in lists for name in exempt}
    files = {name for name in named if not name.endswith("/")}
    assert not [name for name in files if not (ROOT / name).is_file()]
