"""The service's commands as processes, and looking at processes by their pids."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

ROOT = Path(__file__).parents[2]
LOOK_S = 0.05
END_S = 30.0


def await_so(
    is_so: Callable[[], object],
    *,
    within_s: float,
    what: str,
    every_s: float = LOOK_S,
    lacking: Collection[object] = (),
) -> None:
    """Look again and again, until it is so; what is `lacking` in the end is told."""
    give_up_at = monotonic() + within_s
    while not is_so():
        assert monotonic() < give_up_at, f"not within {within_s} s: {what}; lacking: {lacking}"
        sleep(every_s)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def named(pid: int) -> str:
    """What a process calls itself; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(pid: int) -> list[int]:
    """Return the pids of a process's children, of theirs, and so on."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(folder.name))
    found, waiting = list[int](), [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def kill_children(pid: int, called: str) -> None:
    """Kill the children of a process of ours that have this in their command line."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # threads and children end meanwhile
            for child in map(int, (task / "children").read_text().split()):
                if called in named(child):
                    os.kill(child, 9)


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def write_config(folder: Path, *, port: int = 0, metrics_port: int = 0) -> Path:
    """Settings of a controller with a store of its own."""
    config = folder / f"settings-{port}.json"
    server = {"port": port, "metrics_port": metrics_port}
    store = {"url": f"sqlite:///{folder / 'eplb.db'}"}
    config.write_text(json.dumps({"server": server, "store": store}))
    return config


class Command:
    """One run of `eplb-service`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log

    def said(self) -> str:
        """Everything that it wrote."""
        return self._log.read_text(errors="replace")

    def await_endpoint(self, within_s: float = 60.0) -> str:
        """Wait until it says where gRPC listens."""

        def has_said() -> bool:
            assert self.process.poll() is None, self.said()
            return "controller   " in self.said()

        await_so(has_said, within_s=within_s, what="an endpoint")
        return self.said().partition("controller   ")[2].split()[0]

    def await_end(self, within_s: float = END_S) -> int:
        """Wait for its exit code."""
        return self.process.wait(within_s)


@contextmanager
def service(log: Path, *words: str) -> Generator[Command]:
    """Run `eplb-service`; at the end it and all that it started are ended by their pids."""
    command = [sys.executable, "-m", "eplb_service.host.main", *words]
    environment = {"RAY_AUTH_MODE": "disabled", **os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Command(process, log)
    finally:
        family = [process.pid, *descendants(process.pid)]
        for pid in family:
            if is_alive(pid):
                os.kill(pid, 9)
        process.wait(END_S)
