"""vLLM's own balancer, lifted onto the CPU, carries out what our controller orders."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import Controller
from tests.vllm.conftest import AGREE_EVERY, Golden, nobody
from tests.vllm.group import VllmGroup
from tests.vllm.test_same_answers import (
    NUM_PLACEMENTS,
    Case,
    Served,
    require_slots_hold_what_they_claim,
    require_switched_together,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

INSTANCE = "upstream"


@pytest.fixture
def driven(golden: Golden, controller: Controller, tmp_path: Path) -> Iterator[Served]:
    model, want = golden("qwen3")
    extra = {
        **nobody(),
        "EPLB_VLLM_ENABLED": "1",
        "EPLB_VLLM_REDUNDANT_EXPERTS": "2",
        "EPLB_AGENT_AGREE_EVERY": str(AGREE_EVERY),
        "EPLB_AGENT_DEPLOYMENT__MODEL": "qwen3",
        "EPLB_AGENT_DEPLOYMENT__INSTANCE": INSTANCE,
        "EPLB_AGENT_PACE__POLL_S": "0.05",
    }
    operator = DeploymentOperator(controller.port, f"qwen3/{INSTANCE}/serve/0/0")
    group = VllmGroup(model, "tp", 2, tmp_path, extra, drives=f"127.0.0.1:{controller.port}")
    yield Served(Case("qwen3", "tp", 2, 2), model, group, operator, want)
    operator.close()
    group.kill()


def test_answers_stay_the_same_while_vllm_moves_what_we_order(driven: Served) -> None:
    """Its policy is ours, its step is ours to begin with, and its transfer is its own."""
    driven.require_same()
    initial = driven.group.stats()
    for _ in range(NUM_PLACEMENTS):
        driven.place_anew()
    final = driven.group.stats()
    assert [one.held for one in final] != [one.held for one in initial]
    require_slots_hold_what_they_claim(final, driven.model)
    require_switched_together(final)
    assert not any(one.is_halted for one in final)
    require_load_is_taken(driven)


def require_load_is_taken(driven: Served) -> None:
    """The controller refuses reports that do not add up, and windows in which tokens were lost."""
    while not driven.operator.status().window.num_steps:
        driven.require_same()
    window = driven.operator.status().window
    assert window.coverage == 1
    assert not window.rejected_reports
