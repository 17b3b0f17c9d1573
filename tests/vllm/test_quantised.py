"""Quantised experts: served and moved where the runtime has their format, and refused where not."""

from pathlib import Path

import pytest

from benchmarks.demo_vllm.models import qwen3_weights, write
from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import START_S, Controller
from tests.vllm.checkpoints import (
    FORMS,
    IN_ANY_RUN,
    INT4,
    quantised,
    rows_are_quantised,
    write_quantised,
)
from tests.vllm.conftest import AGREE_EVERY, Golden, nobody
from tests.vllm.group import RankFailed, VllmGroup, largest_difference
from tests.vllm.test_same_answers import (
    Case,
    Served,
    require_every_token_counted,
    require_negative_control,
    require_switched_together,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

INSTANCE = "quantised"
ALL = [pytest.param(form, marks=[] if form in IN_ANY_RUN else [pytest.mark.slow]) for form in FORMS]
NUM_PLACEMENTS = 1
"""How experts move does not depend on what they consist of; test_same_answers.py orders more."""
BORDER = 0.05
"""Most that a log-probability may differ where a number took the next code, which few do."""


class ServedByCodes(Served):
    """Experts quantise what they read: a last bit that differs may be worth a whole code."""

    def require_same(self) -> None:
        for rank, got in enumerate(self.group.generate()):
            wrong = [i for i, one in enumerate(got) if one.tokens != self.want[i].tokens]
            assert not wrong, f"rank {rank}: prompts {wrong} are answered otherwise"
            assert [one.experts for one in got] == [one.experts for one in self.want]
            assert largest_difference(got, self.want) < BORDER


@pytest.mark.parametrize("form", ALL)
def test_experts_answer_as_the_numbers_that_they_stand_for(
    form: str, golden: Golden, controller: Controller, tmp_path: Path
) -> None:
    """Unpatched vLLM serves their float32: it has no kernel for these on every CPU."""
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
        kind = ServedByCodes if rows_are_quantised(form) else Served
        served = kind(case, model, group, operator, want)
        before = group.stats()
        for _ in range(NUM_PLACEMENTS):
            served.place_anew()
        after = group.stats()
        require_every_token_counted(after, case)
        require_switched_together(after, NUM_PLACEMENTS)
        assert [one.held for one in after] != [one.held for one in before]
        require_negative_control(served)
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
