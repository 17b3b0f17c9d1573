"""A real server on 127.0.0.1 with desks that remember."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc.aio
import pytest

from eplb_service.server.serving import ControllerServer, Desks, ServerOptions
from tests.server.desks import Counters, Operators, Ranks


@dataclass
class Served:
    """A running server and one channel to it."""

    server: ControllerServer
    port: int
    ranks: Ranks
    operators: Operators
    counters: Counters
    channel: grpc.aio.Channel


@pytest.fixture
def options() -> ServerOptions:
    """Small limits, so that tests reach them."""
    return ServerOptions(outbox_limit=8, hello_timeout_s=5.0, stop_grace_s=2.0)


@pytest.fixture
async def served(options: ServerOptions) -> AsyncIterator[Served]:
    """A server that is stopped at the end."""
    ranks, operators, counters = Ranks(), Operators(), Counters()
    desks = Desks(ranks, operators, operators, operators, operators)
    server = ControllerServer(desks, counters, options)
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(server, port, ranks, operators, counters, channel)
    await server.stop()
