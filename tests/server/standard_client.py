"""Clients of the standard services, typed where the packages are not."""

from collections.abc import Sequence
from typing import TypeVar

import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as pb

Asked = TypeVar("Asked", bound=Message)
Answer = TypeVar("Answer", bound=Message)

HEALTH = "/grpc.health.v1.Health"


async def check(channel: grpc.aio.Channel, service: str) -> int:
    """Ask for the health of a service once."""
    call: grpc.aio.UnaryUnaryMultiCallable[
        health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    ] = channel.unary_unary(
        f"{HEALTH}/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return (await call(health_pb2.HealthCheckRequest(service=service), timeout=5)).status


class Watch:
    """Watches the health of the whole server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        call: grpc.aio.UnaryStreamMultiCallable[
            health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        ] = channel.unary_stream(
            f"{HEALTH}/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        self._call = call(health_pb2.HealthCheckRequest())

    async def next(self) -> int:
        answer = await self._call.read()
        assert isinstance(answer, health_pb2.HealthCheckResponse)
        return answer.status

    def cancel(self) -> None:
        self._call.cancel()


async def reflect(
    channel: grpc.aio.Channel, requests: Sequence[pb.ServerReflectionRequest]
) -> list[pb.ServerReflectionResponse]:
    """Ask reflection several things."""
    call: grpc.aio.StreamStreamMultiCallable[
        pb.ServerReflectionRequest, pb.ServerReflectionResponse
    ] = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )
    return [answer async for answer in call(iter(requests), timeout=5)]
