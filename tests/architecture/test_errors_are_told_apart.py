"""Every named failure has a code of its own and one gRPC status."""

import ast
import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from eplb_service.domain.errors import EplbError
from tests.architecture.sources import python_files, tree_of

ERRORS = Path("eplb_service/domain/errors.py")


def every_error(base: type[EplbError] = EplbError) -> Iterator[type[EplbError]]:
    """Every class below the base, at any depth."""
    for error in base.__subclasses__():
        yield error
        yield from every_error(error)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = Counter(error.code for error in (EplbError, *every_error()))
    assert len(codes) > 1
    assert not [code for code, uses in codes.items() if uses > 1]


def test_every_error_has_one_status() -> None:
    if importlib.util.find_spec("eplb_service.server.status") is None:
        return
    status = importlib.import_module("eplb_service.server.status").STATUS
    assert set(status) == set(every_error())


def test_every_error_says_its_own_code() -> None:
    assert not [error.__name__ for error in every_error() if "code" not in vars(error)]


def test_the_service_and_the_agent_name_failures_in_one_place() -> None:
    names = {error.__name__ for error in (EplbError, *every_error())}
    elsewhere = [
        f"{path}: {node.name}"
        for path in python_files("eplb_service", "worker_agent")
        if path != ERRORS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        and {ast.unparse(base).rpartition(".")[2] for base in node.bases} & names
    ]
    assert not elsewhere
