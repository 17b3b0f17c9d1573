"""Standard gRPC health (grpc.health.v1): serving means that this controller leads.

The service ALIVE is apart from the others: it serves while the process answers, leader or
not, planning or moving. A probe that ends what does not answer asks for it; one that sends
callers asks for the leader.
"""

from collections.abc import Sequence
from typing import Protocol

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

HEALTH_SERVICE = health.SERVICE_NAME
ALIVE = "eplb.alive"


class _Servicer(Protocol):
    """The asyncio servicer of grpcio-health-checking, which its stubs leave out."""

    async def set(self, service: str, status: int) -> None: ...

    async def enter_graceful_shutdown(self) -> None: ...


class Health:
    """The health of the whole server and of each of its services, always the same."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = ("", *services)
        # The bundled stubs know only the threaded half of the package.
        self._servicer: _Servicer = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def register(self, server: grpc.aio.Server) -> None:
        """Answer health checks on this server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)  # pyright: ignore[reportUnknownMemberType] - untyped stub

    async def lead(self, *, is_leading: bool) -> None:
        """Say whether this controller leads."""
        status = health_pb2.HealthCheckResponse
        await self._servicer.set(ALIVE, status.SERVING)
        for service in self._services:
            await self._servicer.set(service, status.SERVING if is_leading else status.NOT_SERVING)

    async def close(self) -> None:
        """Say for good that nothing is served here."""
        await self._servicer.enter_graceful_shutdown()
