"""vllm-ascend's own balancing loop, its real classes, carries out what our controller orders."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import START_S, Controller, serving_environment
from tests.host.processes import free_port
from tests.vllm.ascend_rank import NUM_EXPERTS, NUM_LAYERS, NUM_REDUNDANT
from tests.vllm.conftest import AGREE_EVERY, nobody
from tests.vllm.group import Group, Member, RankFailed

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

NUM_RANKS = 2
NUM_SLOTS = (NUM_EXPERTS + NUM_REDUNDANT) // NUM_RANKS
INSTANCE = "ascend"


class AscendGroup(Group):
    """The ranks of one loop."""

    def __init__(self, folder: Path, endpoint: str, extra: dict[str, str], **more: object) -> None:
        super().__init__()
        port = free_port()
        env = {**serving_environment(), **extra}
        try:
            for rank in range(NUM_RANKS):
                told = {"rank": rank, "num_ranks": NUM_RANKS, "port": port, "endpoint": endpoint}
                log = folder / f"ascend-{rank}.log"
                member = Member("tests.vllm.ascend_rank", told | more, log, env)
                self.members.append(member)
            for member in self.members:
                member.hear()
        except BaseException:
            self.kill()
            raise


@pytest.fixture
def loop(controller: Controller, tmp_path: Path) -> Iterator[AscendGroup]:
    extra = {
        "EPLB_AGENT_AGREE_EVERY": str(AGREE_EVERY),
        "EPLB_AGENT_DEPLOYMENT__INSTANCE": INSTANCE,
        "EPLB_AGENT_WAIT_FOR_WELCOME_S": f"{START_S:.0f}",
        "EPLB_AGENT_PACE__POLL_S": "0.05",
    }
    group = AscendGroup(tmp_path, f"127.0.0.1:{controller.port}", extra)
    yield group
    group.kill()


@pytest.fixture
def operator(controller: Controller) -> Iterator[DeploymentOperator]:
    made = DeploymentOperator(controller.port, f"default/{INSTANCE}/serve/0/0")
    yield made
    made.close()


def test_every_token_finds_its_expert_while_the_loop_does_what_is_ordered(
    loop: AscendGroup, operator: DeploymentOperator
) -> None:
    """Heat that the loop collects reaches the controller; what it orders is done whole."""
    require_right(loop)
    first = loop.ask(do="stats")
    while not (operator.status().window.num_steps and operator.move("greedy")):
        run_cycle(loop)
    while not operator.status().epoch or not operator.is_calm():
        run_cycle(loop)
    run_cycle(loop)
    last = loop.ask(do="stats")
    assert [one["w13"] for one in last] != [one["w13"] for one in first]
    assert len({(one["epoch"], one["step"]) for one in last}) == 1
    assert not any(one["is_halted"] for one in last)
    assert not operator.status().window.rejected_reports


def test_without_a_controller_no_forward_waits(tmp_path: Path) -> None:
    """Its own queue would be waited for without end where a planner is late or dead."""
    group = AscendGroup(tmp_path, "127.0.0.1:1", nobody())
    try:
        before = group.ask(do="stats")
        for _ in range(3):
            run_cycle(group)
        after = group.ask(do="stats")
        assert [one["step"] for one in after] == [2] * NUM_RANKS
        for told in ("log2phy", "w13", "w2"):
            assert [one[told] for one in after] == [one[told] for one in before]
    finally:
        group.kill()


def test_a_loop_that_only_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="expert_map_record_path is set"):
        AscendGroup(tmp_path, "127.0.0.1:1", nobody(), record_path=str(tmp_path / "map.json"))


def run_cycle(group: AscendGroup) -> None:
    """One cycle of the loop; its counter is at its start again after it."""
    assert group.ask(do="cycle") == [0] * NUM_RANKS
    require_right(group)


def require_right(group: AscendGroup) -> None:
    """The slot to which any rank sends an expert's tokens holds that expert, all of it."""
    told = group.ask(do="stats")
    for one in told:
        for layer in range(NUM_LAYERS):
            for expert, slot in enumerate(one["log2phy"][layer]):
                owner = told[slot // NUM_SLOTS]
                local = slot % NUM_SLOTS
                assert owner["w13"][layer][local] == 100.0 * layer + expert
                assert owner["w2"][layer][local] == 100.0 * layer + expert + 0.5
