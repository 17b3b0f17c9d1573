"""Simulated agents: each opens a stream, says Hello, and reports twice a second."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

import grpc.aio
from eplb.v1 import agent_pb2, agent_pb2_grpc

from benchmarks.ingest.server import ReportKey
from benchmarks.ingest.shape import K3, SENT_EVERY, STEPS_PER_REPORT, Deployment, Size
from eplb_service.wire.up import encode_up

__all__ = ["INTERVAL_S", "Sent", "Watch", "report_all"]

INTERVAL_S = 0.5
_HELLO_S = 300.0

Sent = dict[ReportKey, float]
Stream = grpc.aio.StreamStreamCall[agent_pb2.UpMessage, agent_pb2.DownMessage]


class Watch(Protocol):
    """What is told of the agents' progress."""

    def begin(self) -> None:
        """All ranks are welcomed."""
        ...

    async def end(self, sent: Sent) -> None:
        """All reports are sent, and the ranks stay until this returns."""
        ...


class Agents:
    """The streams of all ranks of one deployment, over one connection for each rank."""

    def __init__(self, deployment: Deployment, streams: list[Stream]) -> None:
        self._deployment = deployment
        self._streams = streams

    async def report(self, number: int, sent: Sent) -> None:
        """Send one report of every rank at once: ranks cut their counters at the same step."""
        message = encode_up(self._deployment.report(number))
        await asyncio.gather(
            *(self._send(rank, number, message, sent) for rank in range(len(self._streams)))
        )

    async def _send(self, rank: int, number: int, message: agent_pb2.UpMessage, sent: Sent) -> None:
        key = ReportKey(self._deployment.identity.name, rank, number * STEPS_PER_REPORT)
        sent[key] = time.monotonic()
        await self._streams[rank].write(message)


async def report_all(
    port: int,
    *,
    num_reports: int,
    warm_up: int,
    num_deployments: int,
    size: Size = K3,
    watch: Watch,
) -> Sent:
    """Connect all ranks, let them report, and return when each report was sent.

    warm_up    reports before the first that is returned
    """
    async with asyncio.timeout(_HELLO_S + (warm_up + num_reports + SENT_EVERY) * INTERVAL_S * 4):
        async with _connected(port, num_deployments, size) as groups:
            watch.begin()
            everything: Sent = {}
            async with asyncio.TaskGroup() as tasks:
                for index, agents in enumerate(groups):
                    # Deployments do not know each other, and count steps of their own: they are
                    # spread over an interval, and over those from one sent count to the next.
                    intervals = SENT_EVERY * index // len(groups) + index / len(groups)
                    offset_s = INTERVAL_S * intervals
                    tasks.create_task(_report(agents, offset_s, warm_up + num_reports, everything))
            first_step = warm_up * STEPS_PER_REPORT
            sent = {key: at_s for key, at_s in everything.items() if key.step > first_step}
            await watch.end(sent)
    return sent


async def _report(agents: Agents, offset_s: float, num_reports: int, sent: Sent) -> None:
    begin_s = time.monotonic() + offset_s
    for number in range(1, num_reports + 1):
        await asyncio.sleep(max(0.0, begin_s + number * INTERVAL_S - time.monotonic()))
        await agents.report(number, sent)


@asynccontextmanager
async def _connected(port: int, num_deployments: int, size: Size) -> AsyncGenerator[list[Agents]]:
    """Open every rank's connection and stream, and wait until all are welcomed."""
    channels = [
        grpc.aio.insecure_channel(
            f"127.0.0.1:{port}",
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),
                ("grpc.max_receive_message_length", 64 << 20),
            ],
        )
        for _ in range(num_deployments * size.num_ranks)
    ]
    try:
        yield [
            await _join(
                Deployment(number, size), channels[number * size.num_ranks :][: size.num_ranks]
            )
            for number in range(num_deployments)
        ]
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def _join(deployment: Deployment, channels: list[grpc.aio.Channel]) -> Agents:
    streams: list[Stream] = []
    for rank, channel in enumerate(channels):
        stream = agent_pb2_grpc.AgentServiceStub(channel).Connect()
        await stream.write(encode_up(deployment.hello(rank)))
        welcome = await stream.read()
        if not isinstance(welcome, agent_pb2.DownMessage) or not welcome.HasField("welcome"):
            raise RuntimeError(f"rank {rank} was answered {welcome!r:.200}; expected a Welcome")
        streams.append(stream)
    return Agents(deployment, streams)
