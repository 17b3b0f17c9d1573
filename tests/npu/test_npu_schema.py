"""The Ascend calls against torch_npu 2.13.0's own schemas and shape functions. No kernel runs."""

import json
from pathlib import Path

import pytest

from tests.npu.conftest import RunScript
from tests.npu.pipeline import FORMATS
from tests.npu.schema_texts import schema_texts, snapshot

pytestmark = [pytest.mark.npu_schema, pytest.mark.slow]


def test_the_snapshot_is_what_the_wheel_spells(wheel: Path) -> None:
    assert schema_texts(wheel) == snapshot()["2.13.0"]


def test_all_48_mistakes_are_refused_and_right_calls_are_not(beside_torch_npu: RunScript) -> None:
    printed = beside_torch_npu("mistakes").splitlines()[-1]
    told: dict[str, list[str]] = json.loads(printed)
    assert len(told) == 48
    assert not [what for what, (torch_npu, ours) in told.items() if not (torch_npu or ours)]
    by_rule = [what for what, (_, ours) in told.items() if ours == "rule"]
    assert len(by_rule) == 40
    unseen = [what for what, (torch_npu, ours) in told.items() if ours == "rule" and not torch_npu]
    assert len(unseen) >= 15, "torch_npu itself refuses nearly all: are these still mistakes?"


@pytest.mark.parametrize("mode", ["all_gather", "all_to_all", "mc2", "mc2 by nodes"])
def test_the_whole_pipeline_has_the_right_shapes(beside_torch_npu: RunScript, mode: str) -> None:
    """Every format that is built, on meta tensors and on fake ones."""
    told = beside_torch_npu("pipeline", mode).splitlines()
    passed = {line for line in told if line.startswith((f"{mode} w", f"{mode} unq"))}
    assert passed == {
        f"{mode} {packing.format.value}/{packing.group_size} {kind}"
        for packing in FORMATS
        for kind in ("meta", "fake")
    }


def test_stand_ins_for_cann_open_no_backend(beside_torch_npu: RunScript) -> None:
    assert "NPU 0 is wanted and 0 answer" in beside_torch_npu("opening")
