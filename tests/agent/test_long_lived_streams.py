"""A stream on which nobody says anything, behind a proxy that ends what is idle."""

import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from eplb.v1 import agent_pb2, agent_pb2_grpc

from eplb_service.protocol.messages import Idle
from eplb_service.server.serving import ServerOptions
from eplb_service.wire.up import decode_up
from tests.system.proxy import Proxy
from worker_agent.adapters.grpc_channel import GrpcChannel, GrpcStream, Keepalive
from worker_agent.ports.channel import StreamLost

pytestmark = pytest.mark.slow

IDLE_LIMIT_S = 2.5
"""Of the proxy. gRPC pings once a second at most, and a server asks for patience."""
PATIENCE_S = 20.0
OFTEN = Keepalive(every_s=1, timeout_s=10)
RARELY = Keepalive(every_s=30, timeout_s=10)


class Listener(agent_pb2_grpc.AgentServiceServicer):
    """Hears words, and says none."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def Connect(  # noqa: N802 - the name is the service's
        self, request_iterator: Iterator[agent_pb2.UpMessage], context: grpc.ServicerContext
    ) -> Iterator[agent_pb2.DownMessage]:
        del context
        for message in request_iterator:
            self.heard.append(decode_up(message))
        yield from ()


@contextmanager
def behind_a_proxy() -> Generator[tuple[Listener, str]]:
    """A server with the controller's own limits for pings, at an endpoint of a proxy."""
    listener = Listener()
    options = ServerOptions(min_ping_interval_s=0.5).channel_arguments()
    server = grpc.server(ThreadPoolExecutor(4), options=options)
    agent_pb2_grpc.add_AgentServiceServicer_to_server(listener, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    proxy = Proxy(("127.0.0.1", port), idle_limit_s=IDLE_LIMIT_S)
    try:
        yield listener, proxy.endpoint
    finally:
        proxy.close()
        server.stop(0).wait(PATIENCE_S)


def watch(stream: GrpcStream, seconds: float) -> str:
    """Look at a stream for so long; return why it was lost, empty where it was not."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            assert stream.receive() is None
        except StreamLost as lost:
            return str(lost)
        time.sleep(0.05)
    return ""


def hears(listener: Listener, word: Idle) -> bool:
    """Whether a word comes to the other end."""
    until = time.monotonic() + PATIENCE_S
    while word not in listener.heard and time.monotonic() < until:
        time.sleep(0.05)
    return word in listener.heard


def test_f58_pings_keep_an_idle_stream_behind_a_proxy_that_ends_idle_ones() -> None:
    with behind_a_proxy() as (listener, endpoint):
        stream = GrpcChannel(endpoint, OFTEN).open(lambda: None)
        assert watch(stream, 3 * IDLE_LIMIT_S) == ""
        word = Idle(is_idle=True, step=7)
        assert stream.send(word)
        assert hears(listener, word)
        stream.close()


def test_f58_a_stream_that_is_ended_for_idleness_is_told_of_and_the_next_one_is_heard() -> None:
    with behind_a_proxy() as (listener, endpoint):
        channel = GrpcChannel(endpoint, RARELY)
        stream = channel.open(lambda: None)
        told = watch(stream, PATIENCE_S)
        assert endpoint in told
        assert "too many pings" not in told.lower()
        stream.close()
        again, word = channel.open(lambda: None), Idle(is_idle=True, step=8)
        assert again.send(word)
        assert hears(listener, word)
        again.close()
