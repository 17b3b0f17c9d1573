"""The processes of the demonstration: a controller on Ray, and vLLM's server; each ended by pid."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

START_S = 600.0
"""Longest wait for a process to be up, on a busy machine."""
END_S = 60.0
EXPIRY_STEPS = 1_000_000
INSTANCE = "demo"
ANNOUNCED = re.compile(r"^controller .* pid (\d+)$", re.MULTILINE)
"""What `eplb-service up` prints once the controller leads."""


class PartFailed(Exception):
    """A process did not come up; the text has the end of its log."""


class Part:
    """One process with what it starts, and its log."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], extra: dict[str, str]) -> None:
        """Start it in a session of its own."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **extra},
                start_new_session=True,
            )

    def await_up(self, is_up: Callable[[], bool]) -> None:
        """Wait until it is up. Raises PartFailed."""
        give_up_at = time.monotonic() + START_S
        while not is_up():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > give_up_at:
                what = "ended" if ended else f"was not up after {START_S:g} s"
                raise PartFailed(f"{self.name} {what}:\n{self.said()[-3000:]}")
            time.sleep(0.2)

    def said(self) -> str:
        """Everything that it wrote."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self) -> None:
        """Kill it and everything that it started, at once."""
        if self._process is None:
            return
        for pid in (self._process.pid, *descendants(self._process.pid)):
            with suppress(ProcessLookupError):  # its parent's end was its own
                os.kill(pid, signal.SIGKILL)
        self._process.wait(END_S)
        self._process = None


class Controller(Part):
    """The placement controller on a Ray of its own."""

    def __init__(self, folder: Path, agree_every: int, *, report_every: int = 10) -> None:
        super().__init__("controller", folder)
        self.port = free_port()
        self._config = folder / "controller.json"
        told = settings(self.port, folder, agree_every, report_every)
        self._config.write_text(json.dumps(told))

    def up(self) -> None:
        """Start Ray and it, and wait until it leads.

        For a time when nothing else runs: Ray gives its own processes 30 s, and has no setting
        for that.
        """
        command = [sys.executable, "-m", "eplb_service.host.main", "up", "--wait", "300"]
        extra = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            # Of the process in which Ray starts a killed actor again, beside a busy server.
            "RAY_worker_register_timeout_seconds": f"{START_S:.0f}",
        }
        self.start([*command, "--config", str(self._config)], extra)
        self.await_up(lambda: ANNOUNCED.search(self.said()) is not None)

    def run(self) -> None:
        """Start it without Ray, and wait until it leads."""
        command = [sys.executable, "-m", "eplb_service.host.main", "run"]
        self.start([*command, "--config", str(self._config)], {})
        self.await_up(lambda: ANNOUNCED.search(self.said()) is not None)

    def kill_leader(self) -> None:
        """Kill the process that leads, not Ray, which then starts another one."""
        announced = ANNOUNCED.search(self.said())
        assert announced is not None, "it is not up"
        os.kill(int(announced[1]), signal.SIGKILL)


class Server(Part):
    """vLLM's own server: two engines that share experts."""

    def __init__(self, model: Path, folder: Path, controller_port: int, agree_every: int) -> None:
        super().__init__("server", folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._model = model
        self._extra = {
            **serving_environment(),
            "EPLB_VLLM_ENABLED": "1",
            "EPLB_VLLM_REDUNDANT_EXPERTS": "2",
            "EPLB_AGENT_ENDPOINT": f"127.0.0.1:{controller_port}",
            "EPLB_AGENT_AGREE_EVERY": str(agree_every),
            "EPLB_AGENT_DEPLOYMENT__INSTANCE": INSTANCE,
            "EPLB_AGENT_WAIT_FOR_WELCOME_S": f"{START_S:.0f}",
            "EPLB_AGENT_PACE__POLL_S": "0.05",
            "EPLB_AGENT_PACE__MAX_BACKOFF_S": "1",
        }

    def up(self) -> None:
        """Start it and wait until it answers."""
        port = self.url.rpartition(":")[2]
        options = {**server_options(), "--model": str(self._model), "--port": port}
        flags = ["--enforce-eager", "--enable-expert-parallel", "--no-enable-prefix-caching"]
        words = [word for pair in options.items() for word in pair]
        module = "vllm.entrypoints.openai.api_server"
        self.start([sys.executable, "-m", module, *flags, *words], self._extra)
        self.await_up(lambda: self.is_healthy(within_s=5))

    def complete(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Return the greedy continuation of a prompt. Raises URLError."""
        body = {
            "model": str(self._model),
            "prompt": list(prompt),
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            (choice,) = json.load(answer)["choices"]
        return [int(token) for token in choice["token_ids"]]

    def is_healthy(self, *, within_s: float = START_S) -> bool:
        """Whether it says so in time."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=within_s) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


def server_options() -> dict[str, str]:
    """Options of vLLM's server, but for where it is."""
    return {
        "--host": "127.0.0.1",
        "--data-parallel-size": "2",
        "--dtype": "float32",
        "--max-model-len": "256",
        "--max-num-seqs": "8",
        "--kv-cache-memory-bytes": str(64 << 20),
    }


def serving_environment() -> dict[str, str]:
    """What any process of vLLM needs on a machine without accelerators and network."""
    return {
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }


def settings(
    port: int, folder: Path, agree_every: int, report_every: int
) -> dict[str, dict[str, str | int | float | bool]]:
    """The controller's settings: plans are drawn when they are asked for.

    Steps of a tiny model take milliseconds, and go on while the controller, its store and its
    planner wait for a processor that engines keep busy: what is patient for some seconds or some
    hundred steps elsewhere must be so for minutes and thousands here.
    """
    return {
        "server": {"port": port, "metrics_port": 0},
        "store": {"url": f"sqlite:///{folder / 'eplb.db'}", "deadline_s": START_S},
        "planning": {"is_automatic": False, "deadline_s": START_S},
        "window": {
            "report_every_steps": report_every,
            "interval_steps": 2 * report_every,
            "num_intervals": 3,
        },
        "protocol": {
            "agree_every": agree_every,
            "expiry_steps": EXPIRY_STEPS,
            "wave_deadline_s": START_S,
        },
    }


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one, children first."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process that has just ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                child = int(stat.parent.name)
                yield child
                yield from descendants(child)
