"""The server as a whole: binding, health, reflection, keepalive, message sizes, stopping."""

import asyncio

import grpc
import grpc.aio
import pytest
from eplb.v1 import admin_pb2 as pb
from eplb.v1 import admin_pb2_grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from eplb_service.controller.desk import MapRequest
from eplb_service.domain.errors import BindFailed
from eplb_service.protocol.messages import Idle, Welcome
from eplb_service.server.serving import SERVICES, ControllerServer, Desks, ServerOptions
from tests.server.conftest import Served
from tests.server.desks import Counters, Operators, Ranks
from tests.server.rank_client import RankClient
from tests.server.standard_client import Watch, check, reflect

Health = health_pb2.HealthCheckResponse


def a_server(options: ServerOptions) -> ControllerServer:
    operators = Operators()
    return ControllerServer(Desks(Ranks(), operators, operators, operators), Counters(), options)


async def test_a_port_that_is_taken_is_a_loud_failure(served: Served) -> None:
    second = a_server(ServerOptions(port=served.port))
    with pytest.raises(BindFailed, match=f"127.0.0.1:{served.port} cannot be taken"):
        await second.start()
    await second.stop()  # nothing was opened
    assert isinstance(await RankClient(served.channel).greet(), Welcome)


async def test_an_address_that_is_not_here_is_a_loud_failure() -> None:
    with pytest.raises(BindFailed, match=r"192\.0\.2\.1:0 cannot be taken"):
        await a_server(ServerOptions(host="192.0.2.1")).start()


async def test_a_port_is_free_again_after_a_stop() -> None:
    first = a_server(ServerOptions())
    port = await first.start()
    await first.stop()
    second = a_server(ServerOptions(port=port))
    assert await second.start() == port
    await second.stop()


@pytest.mark.parametrize("service", ["", *SERVICES])
async def test_health_says_serving_only_while_leading(served: Served, service: str) -> None:
    assert await check(served.channel, service) == Health.NOT_SERVING
    await served.server.lead(is_leading=True)
    assert await check(served.channel, service) == Health.SERVING
    await served.server.lead(is_leading=False)
    assert await check(served.channel, service) == Health.NOT_SERVING


async def test_who_watches_health_is_told_at_once(served: Served) -> None:
    watch = Watch(served.channel)
    async with asyncio.timeout(5):
        assert await watch.next() == Health.NOT_SERVING
        await served.server.lead(is_leading=True)
        assert await watch.next() == Health.SERVING
        stop = asyncio.create_task(served.server.stop())
        assert await watch.next() == Health.NOT_SERVING
        watch.cancel()
        await stop


async def test_health_of_a_service_that_is_not_here_is_not_found(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await check(served.channel, "other")
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_names_every_service_and_its_messages(served: Served) -> None:
    services, agent = await reflect(
        served.channel,
        [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICES[0]),
        ],
    )
    listed = {service.name for service in services.list_services_response.service}
    assert listed >= {"eplb.v1.AgentService", "eplb.v1.AdminService", "grpc.health.v1.Health"}
    files = agent.file_descriptor_response.file_descriptor_proto
    assert any(b"LoadReport" in file for file in files)


async def test_messages_beyond_the_usual_four_mebibytes_pass(served: Served) -> None:
    large = pb.Act(request_id="r")
    text = "x" * (9 << 20)
    stub = admin_pb2_grpc.AdminServiceStub(served.channel)
    await stub.Import(pb.ImportRequest(act=large, text=text), timeout=30)
    _, _, asked = served.operators.asked[0]
    assert isinstance(asked, MapRequest)
    assert asked.text == text


async def test_two_stops_are_as_good_as_one(served: Served) -> None:
    await served.server.stop()
    await served.server.stop()


PINGING = (
    ("grpc.keepalive_time_ms", 100),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A client that pings as often as gRPC lets it, once a second, also where nothing is said."""


@pytest.mark.slow
async def test_f58_pings_within_the_limit_keep_an_idle_stream() -> None:
    """The control is a server whose limit is too long: it sends the same client away."""
    good = a_server(ServerOptions(min_ping_interval_s=0.5))
    strict = a_server(ServerOptions(min_ping_interval_s=300.0))
    ports = [await good.start(), await strict.start()]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=PINGING) for port in ports]
    kept, sent_away = [RankClient(channel) for channel in channels]
    await kept.greet()
    await sent_away.greet()
    async with asyncio.timeout(20):
        assert await sent_away.call.code() is grpc.StatusCode.UNAVAILABLE
        assert "too many pings" in (await sent_away.call.details()).lower()
    assert not kept.call.done()
    await kept.say(Idle(is_idle=True, step=0))
    for channel in channels:
        await channel.close()
    await good.stop()
    await strict.stop()


def test_f58_agents_that_ping_every_twenty_seconds_are_within_the_limit() -> None:
    arguments = dict(ServerOptions().channel_arguments())
    assert arguments["grpc.http2.min_ping_interval_without_data_ms"] < 20_000
    assert arguments["grpc.keepalive_permit_without_calls"] == 1
    assert arguments["grpc.so_reuseport"] == 0
    assert arguments["grpc.max_receive_message_length"] == 64 << 20
