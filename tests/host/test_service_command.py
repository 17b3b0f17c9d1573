"""`eplb-service` as its users start and end it."""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false

import os
import signal
import socket
from pathlib import Path
from typing import cast

import grpc
import pytest
import ray
from grpc_health.v1 import health_pb2

from tests.host.operators import Operator
from tests.host.processes import (
    await_so,
    descendants,
    free_port,
    is_alive,
    named,
    service,
    write_config,
)

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def cluster_address() -> str:
    """Where other processes find the Ray of this one."""
    return cast("str", ray.get_runtime_context().gcs_address)


def health(endpoint: str, *, within_s: float = 30.0) -> str:
    """What the controller's health check says, once anything answers."""
    with grpc.insecure_channel(endpoint, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = check(health_pb2.HealthCheckRequest(), timeout=within_s, wait_for_ready=True)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_serves_until_it_is_told_to_end(tmp_path: Path, number: signal.Signals) -> None:
    config = write_config(tmp_path)
    with service(tmp_path / "log", "run", "--config", str(config)) as run:
        endpoint = run.await_endpoint()
        assert health(endpoint) == "SERVING"
        run.process.send_signal(number)
        assert run.await_end() == 0
        assert "Traceback" not in run.said()
        assert f"eplbctl --endpoint {endpoint} status" in run.said()


def test_settings_that_make_no_sense_end_it_with_a_sentence(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("server: {port: 99999}\nplaning: {}\n")
    with service(tmp_path / "log", "run", "--config", str(config)) as run:
        assert run.await_end() == 2
        assert run.said().startswith("invalid_settings: ")
        assert "server.port" in run.said()
        assert "planing" in run.said()
        assert "Traceback" not in run.said()


@pytest.mark.parametrize("taken", ["port", "metrics_port"])
def test_a_port_that_is_taken_ends_it_loudly(tmp_path: Path, taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = int(other.getsockname()[1])
        config = write_config(tmp_path, **{taken: number})
        with service(tmp_path / "log", "run", "--config", str(config)) as run:
            assert run.await_end() == 1
            complaint = run.said().splitlines()[-1]
            assert complaint.startswith("bind_failed: ")
            assert str(number) in complaint
            assert "Traceback" not in run.said()


async def test_a_second_controller_on_the_same_store_fences_the_first(tmp_path: Path) -> None:
    first_config, second_config = (write_config(tmp_path, port=free_port()) for _ in range(2))
    with service(tmp_path / "first", "run", "--config", str(first_config)) as first:
        async with Operator(first.await_endpoint()) as operator:
            await operator.register_rank()
            with service(tmp_path / "second", "run", "--config", str(second_config)) as second:
                endpoint = second.await_endpoint()
                await operator.require_fenced()
                async with Operator(endpoint) as other:
                    assert (await other.status()).generation == 2
        assert first.await_end() == 3
        assert "not_leader: another controller took over" in first.said().splitlines()[-1]


@pytest.mark.ray
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_starts_a_local_ray_and_takes_all_of_it_down(
    tmp_path: Path, number: signal.Signals
) -> None:
    config = write_config(tmp_path)
    with service(tmp_path / "log", "up", "--config", str(config)) as up:
        endpoint = up.await_endpoint()
        assert health(endpoint) == "SERVING"
        family = descendants(up.process.pid)
        (actor,) = (pid for pid in family if "ControllerActor" in named(pid))
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, actor) == ours, "on a busy machine it would starve"
        up.process.send_signal(number)
        assert up.await_end() == 0
        await_so(lambda: not any(map(is_alive, family)), within_s=30.0, what="all of Ray is down")
        assert "Traceback" not in up.said(), up.said()


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_up_on_a_taken_port_ends_loudly_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = int(other.getsockname()[1])
        config = write_config(tmp_path, port=number)
        with service(tmp_path / "log", "up", "--config", str(config)) as up:
            family = list[int]()
            while up.process.poll() is None and not family:
                family = descendants(up.process.pid)
            assert up.await_end(90.0) == 1
            assert f"bind_failed: address 127.0.0.1:{number} cannot be taken" in up.said()
            await_so(lambda: not any(map(is_alive, family)), within_s=30.0, what="Ray is down")


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_up_on_a_cluster_that_is_not_there_says_so(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    words = ("up", "--address", f"127.0.0.1:{free_port()}", "--config", str(config))
    with service(tmp_path / "log", *words) as up:
        assert up.await_end(60.0) == 5
        assert "no Ray cluster answers at" in up.said()
        assert "Traceback" not in up.said()


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_up_and_down_on_a_cluster_that_is_there_can_be_said_twice(
    tmp_path: Path, local_ray: str
) -> None:
    config = write_config(tmp_path, port=free_port())
    where = ("--address", cluster_address(), "--namespace", local_ray, "--name", "twice")
    endpoints = set[str]()
    for number in range(2):
        with service(tmp_path / f"up{number}", "up", "--config", str(config), *where) as up:
            assert up.await_end(90.0) == 0, up.said()
            endpoints.add(up.said().partition("controller   ")[2].split()[0])
    (endpoint,) = endpoints
    assert health(endpoint) == "SERVING", "it outlives the command"
    said = list[str]()
    for number in range(2):
        with service(tmp_path / f"down{number}", "down", *where) as down:
            assert down.await_end(90.0) == 0, down.said()
            said.append(down.said().splitlines()[-1])
    assert said[0] == "ended actor twice"
    assert "nothing to do" in said[1]


@pytest.mark.ray
def test_a_store_that_forgets_is_refused_on_a_cluster(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("store: {url: 'memory:'}\n")
    words = ("up", "--address", "127.0.0.1:1", "--config", str(config))
    with service(tmp_path / "log", *words) as up:
        assert up.await_end() == 2
        assert "forgets when the actor restarts" in up.said()
