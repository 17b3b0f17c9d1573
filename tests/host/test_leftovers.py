"""What a killed run leaves behind keeps nobody from starting; a live neighbour keeps its own."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import grpc
import pytest
from eplb.v1 import admin_pb2, admin_pb2_grpc

from tests.host.operators import Operator
from tests.host.processes import Command, free_port, is_alive, service, write_config

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SHARED = Path("/dev/shm")  # noqa: S108 -- where the kernel has it


@contextmanager
def run_in(folder: Path, port: int, log: str) -> Generator[Command]:
    """A controller with a store of its own in a folder."""
    folder.mkdir(exist_ok=True)
    config = write_config(folder, port=port)
    with service(folder / log, "run", "--config", str(config)) as one:
        one.await_endpoint()
        yield one


def names_in(folder: Path) -> set[str]:
    """What lies in a folder."""
    return {path.name for path in folder.iterdir()}


def generation(port: int) -> int:
    """Of the only deployment's controller."""
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        (only,) = stub.Status(admin_pb2.StatusRequest(), timeout=10).deployments
        return only.generation


async def test_f67_a_killed_controllers_port_store_and_locks_are_used_again(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    kept = SharedMemory(create=True, size=16)
    memory = kept.buf
    assert memory is not None
    memory[:3] = b"own"
    try:
        with run_in(tmp_path / "neighbour", ports[1], "log") as neighbour:
            async with Operator(f"127.0.0.1:{ports[1]}") as operator:
                await operator.register_rank()
                before = names_in(SHARED)
                with run_in(tmp_path / "ours", ports[0], "first") as first:
                    async with Operator(f"127.0.0.1:{ports[0]}") as one:
                        await one.register_rank()
                        os.kill(first.process.pid, signal.SIGKILL)
                        first.await_end()
                left = names_in(tmp_path / "ours")
                assert {"eplb.db-shm", "eplb.db-wal"} <= left, f"the case is void: {left}"
                with run_in(tmp_path / "ours", ports[0], "second"):
                    assert generation(ports[0]) == 2
                    assert names_in(SHARED) <= before, "left in shared memory"
                assert is_alive(neighbour.process.pid)
                assert generation(ports[1]) == 1, "the neighbour was fenced"
        assert memory.tobytes()[:3] == b"own"
    finally:
        memory.release()
        kept.close()
        kept.unlink()
