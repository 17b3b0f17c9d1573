# pyright: reportPrivateUsage=false
# Off in this file only: torch parses schemas in no public place.
"""Every call of an Ascend operator fits every supported version of torch-npu, by its text.

Read from the syntax trees and the committed schemas, so it holds where torch-npu is not installed.
"""

import ast
from collections.abc import Iterator

import pytest
import torch

from moe_runtime.backends.npu import open_npu
from moe_runtime.backends.npu_custom_rules import CUSTOM_RULES
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_rules import RULES
from moe_runtime.contracts.npu_errors import NpuCallRefused, NpuUnavailable
from tests.architecture.sources import python_files, tree_of
from tests.npu.emulation_ffn import CUSTOM_SCHEMAS
from tests.npu.schema_texts import snapshot

VERSIONS = ("2.10.0.post4", "2.12.0.post3", "2.13.0")


def parameters(text: str) -> dict[str, tuple[str, object]]:
    """Type and default of each parameter of a schema."""
    schema = torch._C.parse_schema(f"npu::{text}")
    return {a.name: (str(a.type), a.default_value) for a in schema.arguments}


def required(text: str) -> set[str]:
    schema = torch._C.parse_schema(f"npu::{text}")
    return {a.name for a in schema.arguments if not a.has_default_value()}


def call_sites(how: str = "call") -> Iterator[tuple[str, str, set[str]]]:
    """Place, operator and named arguments of every call through the door."""
    for path in python_files("moe_runtime"):
        for node in ast.walk(tree_of(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            first = node.args[0] if node.args else None
            if node.func.attr == how and isinstance(first, ast.Constant):
                yield (
                    f"{path}:{node.lineno}",
                    str(first.value),
                    {k.arg or "**" for k in node.keywords},
                )


def test_the_supported_versions_are_in_the_snapshot() -> None:
    texts = snapshot()
    assert tuple(texts) == VERSIONS
    assert all(texts[version].keys() == RULES.keys() for version in VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_call_site_binds_in_every_supported_version(version: str) -> None:
    texts = snapshot()[version]
    sites = list(call_sites())
    assert {operator for _, operator, _ in sites} == RULES.keys()
    for place, operator, named in sites:
        assert named == RULES[operator].arguments, place
        assert named <= parameters(texts[operator]).keys(), place
        assert required(texts[operator]) <= named, place


def test_what_versions_default_differently_is_never_left_to_them() -> None:
    """Those added later than the oldest version cannot be named; nor can they be relied on."""
    texts = snapshot()
    for operator, rule in RULES.items():
        by_version = [parameters(texts[version][operator]) for version in VERSIONS]
        everywhere = {n for n in by_version[0] if all(n in told for told in by_version)}
        differing = {n for n in everywhere if len({str(told[n]) for told in by_version}) > 1}
        assert differing <= rule.arguments, operator


def test_defaults_that_changed_before_the_oldest_version_are_named_all_the_same() -> None:
    assert {"quant_mode", "x_dtype"} <= RULES["npu_moe_init_routing_v2"].arguments
    assert {"dst_type"} <= RULES["npu_dynamic_quant"].arguments
    assert {"output_dtype"} <= RULES["npu_grouped_matmul"].arguments


def test_every_call_of_a_custom_operator_binds_and_leaves_nothing_to_a_default() -> None:
    for texts in CUSTOM_SCHEMAS.values():
        assert texts.keys() == CUSTOM_RULES.keys()
        sites = list(call_sites("call_custom"))
        assert {operator for _, operator, _ in sites} == CUSTOM_RULES.keys()
        for place, operator, named in sites:
            assert named == CUSTOM_RULES[operator].arguments, place
            assert named == parameters(texts[operator]).keys(), place


def test_without_torch_npu_the_backend_refuses_and_says_why() -> None:
    with pytest.raises(NpuUnavailable, match="nothing is computed on the CPU in its place"):
        open_npu(0)


def test_the_door_names_the_argument_that_is_wrong() -> None:
    door = NpuDoor(object(), torch.device("cpu"))
    arguments = dict.fromkeys(RULES["npu_dynamic_quant"].arguments)
    with pytest.raises(NpuCallRefused, match="input is a NoneType, expected a tensor"):
        door.call("npu_dynamic_quant", **arguments)
