"""Nothing that came from elsewhere is ever unpickled: unpickling runs what it is given."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import HOUSES, python_files, tree_of

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
OBJECTS = {"broadcast_object_list", "all_gather_object", "scatter_object_list", "send_object_list"}
"""Collectives of torch.distributed that unpickle what other ranks sent."""


def unpickling(tree: ast.AST) -> Iterator[str]:
    """What a module does that unpickles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in MODULES:
                yield node.module or ""
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            told = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called == "torch.load" and told.get("weights_only") != "True":
                yield called
            if called.rpartition(".")[2] in OBJECTS:
                yield called
            if called in ("np.load", "numpy.load") and told.get("allow_pickle") != "False":
                yield f"{called} without allow_pickle=False"
            if called in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                yield called


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as c",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "dist.all_gather_object(a, b)",
        "np.load(f)",
        "np.load(f, allow_pickle=True)",
        "yaml.load(t)",
    ],
)
def test_every_way_to_unpickle_is_seen(code: str) -> None:
    assert list(unpickling(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["torch.load(f, weights_only=True)", "np.load(f, allow_pickle=False)", "json.loads(t)"]
)
def test_what_does_not_unpickle_is_let_be(code: str) -> None:
    assert not list(unpickling(ast.parse(code)))


def test_no_module_of_ours_unpickles() -> None:
    files = list(python_files(*HOUSES))
    assert files
    found: dict[Path, list[str]] = {path: list(unpickling(tree_of(path))) for path in files}
    assert not {str(path): what for path, what in found.items() if what}
