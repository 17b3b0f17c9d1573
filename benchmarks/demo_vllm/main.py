"""`make demo-vllm`: vLLM serves requests while a controller on Ray rebalances its experts.

Two engines share the experts of a tiny Qwen3-MoE. Six clients ask; every half second a new
placement is ordered; in the middle the controller is killed, and Ray starts it again. Every
answer is compared with what one process of vLLM without the plugin answers.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from benchmarks.demo_vllm.models import write_qwen3
from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import (
    INSTANCE,
    START_S,
    Controller,
    PartFailed,
    Server,
    serving_environment,
)
from benchmarks.demo_vllm.prompts import PROMPTS
from benchmarks.demo_vllm.traffic import Tally, Traffic

AGREE_EVERY = 2
EVERY_S = 0.5
PATIENCE_S = 300.0
NUM_REQUESTS = 200
NUM_PLACEMENTS = 6
NEVER = -1
SUMMARY = Path("build/demo-vllm-summary.json")


@dataclass(frozen=True, slots=True)
class Summary:
    """What is written at the end."""

    requests: int
    identical: int
    failed: int
    placements_applied: int
    negative_control_identical: int

    def is_right(self) -> bool:
        """Whether all answers were right, experts moved, and a wrong map would have been seen."""
        return (
            self.requests >= NUM_REQUESTS
            and self.identical == self.requests
            and not self.failed
            and self.placements_applied >= NUM_PLACEMENTS
            and not self.negative_control_identical
        )


def main() -> int:
    """Run it; 0 if everything was as it should be."""
    with tempfile.TemporaryDirectory(prefix="eplb-demo-vllm-") as folder:
        summary = run(Path(folder))
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text(json.dumps(asdict(summary), indent=2) + "\n")
    print(SUMMARY.read_text())
    return 0 if summary.is_right() else 1


def run(folder: Path) -> Summary:
    """Do all of it in a folder of its own."""
    model = write_qwen3(folder / "qwen3")
    want, wrong = alone(model, folder), alone(model, folder, rolled=True)
    print(f"vLLM alone answers {len(want)} prompts; with a wrong map {same(want, wrong)} alike")
    controller = Controller(folder, AGREE_EVERY)
    server = Server(model, folder, controller.port, AGREE_EVERY)
    try:
        controller.up()
        server.up()
        tally, epoch = serve(controller, server, want)
    finally:
        server.kill()
        controller.kill()
    return Summary(tally.requests, tally.identical, tally.failed, epoch, same(want, wrong))


def serve(controller: Controller, server: Server, want: list[list[int]]) -> tuple[Tally, int]:
    """Serve and rebalance until enough is seen; return the tally and the last epoch."""
    operator = DeploymentOperator(controller.port, f"qwen3/{INSTANCE}/serve/0/0")
    prompts = [list(text.encode()) for text in PROMPTS]
    traffic = Traffic(server, prompts, want)
    traffic.start()
    epoch, killed, give_up_at = 0, NEVER, time.monotonic() + PATIENCE_S
    try:
        while True:
            epoch, generation = move_on(operator, epoch)
            traffic.require_health()
            if is_seen(traffic.tally, epoch, parts=2) and killed == NEVER:
                print(f"the controller is killed at epoch {epoch}; Ray starts it again")
                controller.kill_leader()
                killed, give_up_at = generation, time.monotonic() + PATIENCE_S
            is_back = killed != NEVER and generation > killed
            if is_back and is_seen(traffic.tally, epoch, parts=1):
                break
            if time.monotonic() > give_up_at:
                raise PartFailed(
                    f"within {PATIENCE_S:g} s only {traffic.tally.requests} requests and {epoch} "
                    f"placements were seen, with the controller in its generation {generation}"
                )
            time.sleep(EVERY_S)
    finally:
        tally = traffic.end()
        operator.close()
    show_status(controller)
    for failure in tally.failures[:5]:
        print(f"failed: {failure}")
    return tally, epoch


def is_seen(tally: Tally, epoch: int, *, parts: int) -> bool:
    """Whether one of so many parts of the requests and placements is over."""
    return tally.requests >= NUM_REQUESTS // parts and epoch >= NUM_PLACEMENTS // parts


def move_on(operator: DeploymentOperator, epoch: int) -> tuple[int, int]:
    """Order another placement if none is on its way.

    Returns the newest epoch that is served, and the controller's generation.
    """
    try:
        status = operator.status()
        if operator.is_calm():
            operator.move()
    except grpc.RpcError as error:
        print(f"the controller does not answer ({error.__class__.__name__})")
        return epoch, NEVER
    return int(status.epoch), int(status.generation)


def show_status(controller: Controller) -> None:
    """Print what an operator sees."""
    command = [sys.executable, "-m", "eplb_service.cli.entry"]
    endpoint = ["--endpoint", f"127.0.0.1:{controller.port}"]
    subprocess.run([*command, *endpoint, "status"], check=False, timeout=START_S)


def alone(model: Path, folder: Path, *, rolled: bool = False) -> list[list[int]]:
    """Return what one process of vLLM answers."""
    target = folder / "answers.json"
    extra = {**serving_environment(), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    words = ["roll"] if rolled else []
    if rolled:
        extra |= {"EPLB_VLLM_ENABLED": "1", "EPLB_AGENT_ENDPOINT": "127.0.0.1:1"}
        extra |= {"EPLB_AGENT_WAIT_FOR_WELCOME_S": "0"}
    with (folder / "alone.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.demo_vllm.alone", str(model), str(target), *words],
            check=True,
            env={**os.environ, **extra},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
    answers: list[list[int]] = json.loads(target.read_text())
    return answers


def same(some: list[list[int]], others: list[list[int]]) -> int:
    """Return how many answers are equal."""
    return sum(one == other for one, other in zip(some, others, strict=True))


if __name__ == "__main__":
    sys.exit(main())
