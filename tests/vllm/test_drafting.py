"""A model that drafts tokens has experts of its own, a deployment apart; case F31."""

from pathlib import Path

import pytest

from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import START_S, Controller
from tests.vllm.conftest import AGREE_EVERY, Golden
from tests.vllm.group import VllmGroup, largest_difference
from tests.vllm.test_same_answers import (
    TOLERANCE,
    Case,
    Served,
    redundancy,
    require_start_in_the_map,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

INSTANCE = "drafted"
MAP = (
    (4, 5, 6, 7, 0, 1, 2, 3, 4, 5),
    (0, 1, 2, 3, 4, 5, 6, 7, 0, 1),
    (1, 3, 5, 7, 0, 2, 4, 6, 1, 3),
)
CASE = Case("qwen3", "tp", 2, 2, MAP)
"""The map has the target's layers alone."""


class Drafted(Served):
    """Tokens that are drafted and not taken go through experts too, so these are not compared."""

    def require_same(self) -> None:
        for got in self.group.generate():
            assert [one.tokens for one in got] == [one.tokens for one in self.want]
            assert largest_difference(got, self.want) < TOLERANCE


def test_a_draft_model_is_balanced_apart_from_its_target(
    golden: Golden, controller: Controller, tmp_path: Path
) -> None:
    """Answers do not depend on who drafts them, so they are those of the target alone.

    A map that has the target's layers alone leaves the draft where it was loaded.
    """
    model, want = golden("qwen3")
    extra = {
        "EPLB_VLLM_ENABLED": "1",
        **redundancy(CASE, tmp_path),
        "EPLB_AGENT_ENDPOINT": f"127.0.0.1:{controller.port}",
        "EPLB_AGENT_AGREE_EVERY": str(AGREE_EVERY),
        "EPLB_AGENT_DEPLOYMENT__INSTANCE": INSTANCE,
        "EPLB_AGENT_WAIT_FOR_WELCOME_S": f"{START_S:.0f}",
        "EPLB_AGENT_PACE__POLL_S": "0.05",
    }
    group = VllmGroup(model, "tp", 2, tmp_path, extra, is_drafted=True)
    operators = {
        role: DeploymentOperator(controller.port, f"qwen3/{INSTANCE}/{role}/0/0")
        for role in ("serve", "draft")
    }
    try:
        require_start_in_the_map(group.stats(), CASE)
        assert [e for one in group.drafts() for e in one.held[0]] == [*range(8), 0, 1]
        said = group.members[0].said()
        assert said.count("the draft model is served where it was loaded") == 1
        for role, operator in operators.items():
            before = group.drafts(), group.stats()
            Drafted(CASE, model, group, operator, want).place_anew()
            after = group.drafts(), group.stats()
            has_moved = {
                "draft": [one.held for one in after[0]] != [one.held for one in before[0]],
                "serve": [one.held for one in after[1]] != [one.held for one in before[1]],
            }
            assert has_moved == {one: one == role for one in operators}
            assert all(one.load for one in after[0])
    finally:
        for operator in operators.values():
            operator.close()
        group.kill()
