"""values.schema.json: a sentence for every value, and no wrong value comes through."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.architecture.sources import ROOT
from tests.deploy.helm import CHART, EXISTING, MAJORS, run, template
from tests.deploy.settings_schema import SCHEMA, settings_schema
from tests.deploy.trees import Json, is_tree

WRONG: list[tuple[Json, tuple[str, ...]]] = [
    ({"mode": "rayservice"}, ("mode", "rayCluster")),
    ({"controller": {"port": 70000}}, ("port", "65")),
    ({"controller": {"port": "50051"}}, ("port", "integer")),
    ({"controler": {}}, ("controler",)),
    ({"controller": {"settings": {"planing": {}}}}, ("planing",)),
    ({"controller": {"settings": {"gates": {"min_gain": 2}}}}, ("min_gain", "1")),
    ({"controller": {"settings": {"server": {"port": 1}}}}, ("server",)),
    ({"ray": {"auth": {"mode": "open"}}}, ("mode", "token")),
    ({"ray": {"existing": {"address": "serving:6379"}}}, ("address", "ray://")),
    ({"ray": {"gcsFaultTolerance": {"backend": "etcd"}}}, ("backend", "rocksdb")),
    ({"store": {"size": "two"}}, ("size", "pattern")),
    ({"agents": {"env": {"EPLB_ENDPOINT": "x"}}}, ("EPLB_ENDPOINT",)),
    ({"agents": {"env": {"EPLB_AGENT_AGREE_EVERY": 4}}}, ("EPLB_AGENT_AGREE_EVERY", "string")),
    ({"monitoring": {"interval": "15"}}, ("interval", "pattern")),
    ({"podDisruptionBudget": {"maxUnavailable": 2}}, ("maxUnavailable", "1")),
]


def schema() -> Json:
    return json.loads(SCHEMA.read_text())


def nodes(node: Json, name: str) -> Iterator[tuple[str, Json]]:
    """Every value that the schema names."""
    yield name, node
    for key, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{name}.{key}")
    items = node.get("items")
    if is_tree(items):
        yield from nodes(items, f"{name}[]")


def leaves(tree: Json, prefix: str = "") -> Iterator[str]:
    """Every value of a values file, by its dotted name."""
    for name, value in tree.items():
        yield prefix + name
        if is_tree(value):
            yield from leaves(value, f"{prefix}{name}.")


def test_every_value_has_a_sentence() -> None:
    silent = [
        name
        for name, node in nodes(schema(), "")
        if name and "settings." not in name and not node["description"].endswith(".")
    ]
    assert not silent
    assert all(node.get("description") for name, node in nodes(schema(), "") if name)


def test_every_default_stands_in_the_schema_and_the_other_way_round() -> None:
    defaults = set(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    told = {name.lstrip(".") for name, _ in nodes(schema(), "")}
    assert not [name for name in defaults - told if "." in name and "matchLabels" in name]
    untold = {n for n in defaults - told if not _is_free(n)}
    assert not untold
    without = {
        name
        for name in told - defaults
        if name and "[]" not in name and not name.startswith(("global", "controller.settings."))
    }
    assert {n for n in without if not n.endswith((".claims", ".limits", ".requests"))} == set()


def _is_free(name: str) -> bool:
    """Below a value that may hold anything."""
    return any(part in name for part in (".requests.", ".limits.", "dashboardLabels."))


def test_the_settings_part_is_what_the_code_has() -> None:
    told = schema()["properties"]["controller"]["properties"]["settings"]
    assert told == settings_schema(), "`make chart-schema` writes it anew"


@pytest.mark.parametrize("major", MAJORS)
def test_the_first_wrong_value_is_named_by_helm(major: str) -> None:
    values, words = WRONG[0]
    done = template(major, values)
    assert done.code != 0
    assert all(word in done.complaint for word in words), done.complaint


@pytest.mark.slow
@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize(("values", "words"), WRONG)
def test_a_wrong_value_is_refused_by_name(major: str, values: Json, words: tuple[str, ...]) -> None:
    done = template(major, values)
    assert done.code != 0
    assert all(word in done.complaint for word in words), done.complaint
    assert not done.text


def test_lint_refuses_what_template_refuses() -> None:
    done = run("4", "lint", str(CHART), values={"mode": "k3s"})
    assert done.code != 0
    assert "rayCluster" in done.text + done.complaint


def test_the_readme_names_no_value_that_is_not_there() -> None:
    known = {name.lstrip(".") for name, _ in nodes(schema(), "")}
    roots: set[Any] = set(schema()["properties"])
    page = (ROOT / "docs" / "install.md").read_text()
    said = {
        word
        for word in page.replace("`", " ").replace("=", " ").replace('"', " ").split()
        if word.partition(".")[0] in roots and "." in word
    }
    said = {word.rstrip(".,:;)") for word in said}
    assert said
    assert not {word for word in said if word not in known}
    assert EXISTING["mode"] in page
