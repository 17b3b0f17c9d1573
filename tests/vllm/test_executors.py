"""Workers that Ray hosts attach and move experts like any others.

Those of vLLM's own processes do so under the server (test_server.py), and those that somebody else
starts in every other test.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import START_S, Controller, free_port
from tests.vllm.conftest import AGREE_EVERY, Golden
from tests.vllm.group import Member
from tests.vllm.on_ray import NUM_WORKERS, install_platform
from tests.vllm.rank import serving_environment
from tests.vllm.words import Job

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1500)]

INSTANCE = "ray"


@pytest.fixture
def short_folder() -> Iterator[str]:
    """Ray's sockets lie in it, whose names must not be long."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield folder


def test_workers_on_ray_follow_placements_and_answer_the_same(
    golden: Golden, controller: Controller, tmp_path: Path, short_folder: str
) -> None:
    model, want = golden("qwen3")
    install_platform(tmp_path / "platform")
    extra = {
        **serving_environment(),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "platform"), str(Path.cwd())]),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "RAY_USAGE_STATS_ENABLED": "0",
        "EPLB_VLLM_ENABLED": "1",
        "EPLB_VLLM_REDUNDANT_EXPERTS": "2",
        "EPLB_AGENT_ENDPOINT": f"127.0.0.1:{controller.port}",
        "EPLB_AGENT_AGREE_EVERY": str(AGREE_EVERY),
        "EPLB_AGENT_DEPLOYMENT__INSTANCE": INSTANCE,
        "EPLB_AGENT_WAIT_FOR_WELCOME_S": f"{START_S:.0f}",
        "EPLB_AGENT_PACE__POLL_S": "0.05",
    }
    job = Job(str(model), "tp", NUM_WORKERS, 0, free_port())
    told = {"job": job.as_json(), "folder": short_folder}
    driver = Member("tests.vllm.on_ray", told, tmp_path / "driver.log", extra)
    operator = DeploymentOperator(controller.port, f"qwen3/{INSTANCE}/serve/0/0")
    try:
        driver.hear()
        before = ask(driver, "stats")
        is_taken = False
        while not (is_taken and operator.is_calm() and operator.status().epoch):
            assert ask(driver, "generate") == [one.tokens for one in want]
            is_taken = is_taken or operator.move()
        assert ask(driver, "generate") == [one.tokens for one in want]
        after = ask(driver, "stats")
        assert [one["held"] for one in after] != [one["held"] for one in before]
        assert {(one["epoch"], one["is_halted"]) for one in after} == {
            (int(operator.status().epoch), False)
        }
    finally:
        operator.close()
        driver.end()


def ask(driver: Member, what: str) -> list[dict[str, object]]:
    driver.say({"do": what})
    return driver.hear()
