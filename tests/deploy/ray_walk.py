"""The keeper and the controller's actor on a Ray cluster of three nodes, through their misfortunes.

`python -m tests.deploy.ray_walk FOLDER KEEPER_WORD...`, where only the loopback interface exists;
the words are the command line of the chart's keeper. Prints what was seen, as JSON. Ray asks for
a token, as the chart has it.
"""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

import asyncio
import json
import os
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN="a-token-of-this-test-alone",  # noqa: S106 - of a cluster that lives as long
    RAY_USAGE_STATS_ENABLED="0",
    RAY_health_check_initial_delay_ms="1000",
    RAY_health_check_period_ms="500",
    RAY_health_check_timeout_ms="10000",
    RAY_raylet_start_wait_time_s="240",
    RAY_agent_register_timeout_ms="240000",
    RAY_health_check_failure_threshold="3",
)

import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError

from tests.host.operators import Operator
from tests.host.processes import Command, await_so, free_port, is_alive, named, service
from tests.store.redis_server import RedisServer

NAME, NAMESPACE, RESOURCE = "eplb-controller", "eplb", "eplb_controller"
HERE = "127.0.0.1"
WITHIN_S = 120.0
Seen = dict[str, object]
Address = tuple[str, str, int]


class Walk:
    """One cluster, and the keeper on it."""

    def __init__(self, folder: Path, words: list[str], running: ExitStack) -> None:
        self.folder, self.running = folder, running
        port = free_port()
        head = {
            "node_ip_address": HERE,
            "num_cpus": 0,
            "ray_client_server_port": port,
            "include_dashboard": False,
        }
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        running.callback(self.cluster.shutdown)
        for _ in range(2):
            self.cluster.add_node(node_ip_address=HERE, num_cpus=1, resources={RESOURCE: 1})
        ray.init(address=self.cluster.address, namespace=NAMESPACE, log_to_driver=False)
        running.callback(ray.shutdown)
        self.words = [f"ray://127.0.0.1:{port}" if "ray://" in w else w for w in words]
        self.seen: Seen = {}
        self.redis = RedisServer(folder)
        running.callback(self.redis.kill)

    def keeper(self, number: int, **planning: float) -> Command:
        """Start the keeper as the chart does, with settings on the loopback interface."""
        config = self.folder / f"settings-{number}.json"
        server = {"port": 0, "metrics_port": 0}
        store = {"url": self.redis.url}
        config.write_text(json.dumps({"server": server, "store": store, "planning": planning}))
        words = [str(config) if w.startswith("/etc/eplb") else w for w in self.words]
        return self.running.enter_context(service(self.folder / f"keeper-{number}.log", *words))

    def address(self, *, other_than: int = 0) -> Address:
        """Where the actor leads; waits for one of another process than the given one."""
        found: list[Address] = []

        def leads() -> bool:
            with suppress(ValueError, RayError):
                actor = ray.get_actor(NAME, namespace=NAMESPACE)
                found.append(cast("Address", ray.get(actor.ready.remote(), timeout=5)))
            return bool(found) and found[-1][2] != other_than

        await_so(leads, within_s=WITHIN_S, what="an actor that leads")
        return found[-1]


async def main() -> None:
    """Walk through all of it."""
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    with ExitStack() as running:
        walk = Walk(folder, words, running)
        keeper = walk.keeper(1)
        keeper.await_endpoint(WITHIN_S)
        first = walk.address()
        walk.seen["niceness"] = os.getpriority(os.PRIO_PROCESS, first[2])
        walk.seen["at first"] = await generation(first)
        for name, fault in (
            ("after a kill", killed),
            ("after a lost node", node_lost),
            ("after the actor was forgotten", forgotten),
        ):
            walk.seen[name] = await fault(walk)
        walk.seen["keeper lives"] = keeper.process.poll() is None
        sys.stdout.write(json.dumps(walk.seen) + "\n")
        sys.stdout.flush()


async def generation(found: Address) -> int:
    """The generation of the controller there."""
    async with Operator(found[0]) as operator:
        await operator.register_rank()
        return (await operator.status()).generation


async def killed(walk: Walk) -> int:
    """The actor's process is killed; Ray starts it again."""
    before = walk.address()
    os.kill(before[2], signal.SIGKILL)
    return await generation(walk.address(other_than=before[2]))


async def node_lost(walk: Walk) -> int:
    """The raylet under the actor is killed; what is left of the old controller is fenced."""
    before = walk.address()
    async with Operator(before[0]) as old:
        await old.register_rank()
        os.kill(raylet_of(before[2]), signal.SIGKILL)
        after = walk.address(other_than=before[2])
        walk.seen["old one still there"] = is_alive(before[2])
        if is_alive(before[2]):
            await old.require_fenced()
            await_so(lambda: not is_alive(before[2]), within_s=WITHIN_S, what="it ended itself")
    return await generation(after)


def raylet_of(worker: int) -> int:
    """Process id of the raylet that started a worker."""
    stat = Path(f"/proc/{worker}/stat").read_text()
    parent = int(stat.rpartition(")")[2].split()[1])
    assert "raylet" in named(parent), named(parent)
    return parent


async def forgotten(walk: Walk) -> int:
    """The actor is gone for good, as after a lost head; the keeper makes it again."""
    before = walk.address()
    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE), no_restart=True)
    return await generation(walk.address(other_than=before[2]))


if __name__ == "__main__":
    asyncio.run(main())
