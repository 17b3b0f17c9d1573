"""Reported cases of operation that need a whole controller: F62, health while experts move."""

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from eplb_service.server.health import ALIVE
from tests.host.processes import await_so, is_alive
from tests.observe.house import CALL_S, house
from tests.observe.troubles import PLACEMENT, SLOPED, apply

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
CHECKS = 20
SERVING = health_pb2.HealthCheckResponse.SERVING


def test_f62_health_is_serving_before_while_and_after_experts_move(tmp_path: Path) -> None:
    with (
        house(tmp_path) as home,
        grpc.insecure_channel(home.endpoint, [("grpc.enable_http_proxy", 0)]) as channel,
    ):
        group = home.serve("moving", PLACEMENT, SLOPED)
        await_so(lambda: home.has_window(group.name), within_s=CALL_S, what="a window")
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

        def is_healthy() -> bool:
            """Whether whoever routes and whoever restarts would let it be."""
            asked = [health_pb2.HealthCheckRequest(service=name) for name in ("", ALIVE)]
            return all(check(one, timeout=CALL_S).status == SERVING for one in asked)

        def phase() -> str:
            return home.status(group.name).operation.running.phase

        assert is_healthy()
        group.faults.is_stuck = True
        apply(home, group)
        for _ in range(CHECKS):
            assert is_healthy()
        assert phase() == "running", "all of these were asked while a wave was in flight"
        group.faults.is_stuck = False
        await_so(lambda: phase() == "done" or not is_healthy(), within_s=CALL_S, what="its end")
        assert is_healthy()
        assert is_alive(home.pid), "nobody restarted it"
