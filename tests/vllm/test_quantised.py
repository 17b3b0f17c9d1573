"""Quantised experts: served and moved where the runtime has their format, and refused where not."""

from pathlib import Path

import pytest

from benchmarks.demo_vllm.models import qwen3_weights, write
from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import START_S, Controller
from tests.vllm.checkpoints import INT4, quantised, write_quantised
from tests.vllm.conftest import AGREE_EVERY, Golden, nobody
from tests.vllm.group import RankFailed, VllmGroup
from tests.vllm.test_same_answers import (
    Case,
    Served,
    require_every_token_counted,
    require_switched_together,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

INSTANCE = "quantised"


def test_experts_answer_as_the_numbers_that_they_stand_for(
    golden: Golden, controller: Controller, tmp_path: Path
) -> None:
    """Unpatched vLLM serves their float32: it has no kernel for these on every CPU."""
    form = "mxfp4"
    case = Case(form, "dp", 2, 2)
    _, want = golden(form)
    model = write_quantised(tmp_path / form, form)
    extra = {
        "EPLB_VLLM_ENABLED": "1",
        "EPLB_VLLM_REDUNDANT_EXPERTS": str(case.redundant),
        "EPLB_AGENT_ENDPOINT": f"127.0.0.1:{controller.port}",
        "EPLB_AGENT_AGREE_EVERY": str(AGREE_EVERY),
        "EPLB_AGENT_DEPLOYMENT__INSTANCE": INSTANCE,
        "EPLB_AGENT_WAIT_FOR_WELCOME_S": f"{START_S:.0f}",
        "EPLB_AGENT_PACE__POLL_S": "0.05",
    }
    operator = DeploymentOperator(controller.port, f"{form}/{INSTANCE}/serve/0/0")
    group = VllmGroup(model, case.layout, case.num_ranks, tmp_path, extra)
    try:
        served = Served(case, model, group, operator, want)
        before = group.stats()
        for _ in range(3):
            served.place_anew()
        after = group.stats()
        require_every_token_counted(after, case)
        require_switched_together(after)
        assert [one.held for one in after] != [one.held for one in before]
    finally:
        operator.close()
        group.kill()


def refused(folder: Path, unowned: str, ignored: list[str]) -> str:
    """Start one rank on experts of a format that the runtime has not; return what it said."""
    model = write(
        folder / "int4",
        quantised({**INT4, "symmetric": False}, "pack-quantized", ignored),
        qwen3_weights(),
    )
    extra = {"EPLB_VLLM_ENABLED": "1", "EPLB_VLLM_UNOWNED": unowned, **nobody()}
    with pytest.raises(RankFailed) as failed:
        VllmGroup(model, "alone", 1, folder, extra)
    return str(failed.value)


@pytest.mark.parametrize("ignored", [[], [r"re:.*layers\.0\.mlp\.experts.*"]], ids=["all", "later"])
def test_experts_of_an_unknown_format_are_refused_by_its_name(
    tmp_path: Path, ignored: list[str]
) -> None:
    """Whether the first layer is of that format or a later one."""
    said = refused(tmp_path, "refuse", ignored)
    assert "the runtime has no format of asymmetric int4 by group of 32 weights" in said
    assert f"MoE layer model.layers.{len(ignored)}.mlp.experts cannot run" in said
