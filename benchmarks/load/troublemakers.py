"""Ranks that do what no rank should, beside those that are measured."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
from eplb.v1 import agent_pb2_grpc

from benchmarks.ingest.shape import SMALL, Deployment
from eplb_service.wire.up import encode_up

__all__ = ["flood"]

_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


@asynccontextmanager
async def flood(port: int) -> AsyncGenerator[None]:
    """One deployment whose ranks report as fast as they can, and never read what they are told."""
    deployment = Deployment(0, SMALL)
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
        for _ in range(SMALL.num_ranks)
    ]
    floods = [
        asyncio.create_task(_pour(deployment, rank, channel))
        for rank, channel in enumerate(channels)
    ]
    try:
        yield
    finally:
        for task in floods:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*floods)
        await asyncio.gather(*(channel.close() for channel in channels))


async def _pour(deployment: Deployment, rank: int, channel: grpc.aio.Channel) -> None:
    while True:
        stream = agent_pb2_grpc.AgentServiceStub(channel).Connect()
        try:
            await stream.write(encode_up(deployment.hello(rank)))
            number = 0
            while True:
                number += 1
                await stream.write(encode_up(deployment.report(number)))
        except grpc.aio.AioRpcError:
            await asyncio.sleep(1.0)  # its stream was closed; it comes again, as an agent would
