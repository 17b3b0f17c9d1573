"""Pipeline stages have layers, and so deployments, of their own; case F32."""

from pathlib import Path

import pytest

from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import START_S, Controller
from tests.vllm.conftest import AGREE_EVERY, Golden
from tests.vllm.group import VllmGroup
from tests.vllm.test_same_answers import Case, Served, digests_of
from tests.vllm.words import Stats

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

INSTANCE = "staged"
CASE = Case("qwen3", "pp", 4, 2)
STAGES = ([0, 1], [2, 3])
"""Ranks of each."""


SETTINGS = {
    "EPLB_VLLM_ENABLED": "1",
    "EPLB_AGENT_AGREE_EVERY": str(AGREE_EVERY),
    "EPLB_AGENT_DEPLOYMENT__INSTANCE": INSTANCE,
    "EPLB_AGENT_WAIT_FOR_WELCOME_S": f"{START_S:.0f}",
    "EPLB_AGENT_PACE__POLL_S": "0.05",
}


class Staged(Served):
    """A rank answers for its own stage's layers alone, so routed experts are not compared."""

    def require_same(self) -> None:
        for got in self.group.generate():
            assert [one.tokens for one in got] == [one.tokens for one in self.want]


def test_stages_are_balanced_apart_and_answers_stay_the_same(
    golden: Golden, controller: Controller, tmp_path: Path
) -> None:
    """Ranks 2 and 3 are the second stage's: an order to its ranks 0 and 1 moves their experts."""
    model, want = golden("qwen3")
    extra = {
        **SETTINGS,
        "EPLB_VLLM_REDUNDANT_EXPERTS": str(CASE.redundant),
        "EPLB_AGENT_ENDPOINT": f"127.0.0.1:{controller.port}",
    }
    group = VllmGroup(model, CASE.layout, CASE.num_ranks, tmp_path, extra)
    operators = [
        DeploymentOperator(controller.port, f"qwen3/{INSTANCE}/serve/{stage}/0")
        for stage in range(len(STAGES))
    ]
    try:
        for stage, operator in enumerate(operators):
            served = Staged(CASE, model, group, operator, want)
            served.require_same()
            before = group.stats()
            served.place_anew()
            after = group.stats()
            moved = [rank for rank in range(4) if after[rank].held != before[rank].held]
            assert moved == STAGES[stage]
            require_own_layers(after, model)
    finally:
        for operator in operators:
            operator.close()
        group.kill()


@pytest.mark.slow
def test_a_stage_without_experts_is_left_alone(
    golden: Golden, controller: Controller, tmp_path: Path
) -> None:
    """The first stage has the dense layer, the second one both layers with experts."""
    model, want = golden("deepseek")
    extra = {**SETTINGS, "EPLB_AGENT_ENDPOINT": f"127.0.0.1:{controller.port}"}
    extra |= {"VLLM_PP_LAYER_PARTITION": "1,2"}
    group = VllmGroup(model, "pp", 2, tmp_path, extra)
    operator = DeploymentOperator(controller.port, f"deepseek/{INSTANCE}/serve/1/0")
    try:
        for got in group.generate():
            assert [one.tokens for one in got] == [one.tokens for one in want]
        assert [rank.rank for rank in operator.status().ranks] == [0]
        assert "this one of 2 pipeline stages has no MoE layers" in group.members[0].said()
    finally:
        operator.close()
        group.kill()


def require_own_layers(stats: list[Stats], model: Path) -> None:
    """Every slot holds the bytes of its expert, of the layers that its stage has."""
    want, first = digests_of(model), 0
    for ranks in STAGES:
        num_layers = len(stats[ranks[0]].held)
        for one in (stats[rank] for rank in ranks):
            for layer, row in enumerate(one.held):
                assert one.digests[layer] == [want[first + layer][expert] for expert in row]
            assert not one.is_halted
        first += num_layers
    assert first == len(want)
