"""The gRPC server: ranks' streams, operators' calls, health and reflection on one port."""

import asyncio
import logging
from dataclasses import dataclass
from typing import cast

import grpc
import grpc.aio
from eplb.v1 import admin_pb2, admin_pb2_grpc, agent_pb2, agent_pb2_grpc
from grpc_reflection.v1alpha import reflection

from eplb_service.controller.auditing import AuditBook
from eplb_service.controller.desk import ActDesk, OperatorDesk, RankDesk, RunDesk
from eplb_service.controller.ports import Recorder
from eplb_service.domain.errors import BindFailed
from eplb_service.server.admin import AdminService
from eplb_service.server.agent import AgentService
from eplb_service.server.doorman import Doorman
from eplb_service.server.gate import Gate, Note, note_nothing
from eplb_service.server.health import HEALTH_SERVICE, Health
from eplb_service.server.limits import Limits

log = logging.getLogger(__name__)

SERVICES = (
    agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
)


@dataclass(frozen=True, slots=True)
class Desks:
    """Where the server brings its callers."""

    ranks: RankDesk
    operators: OperatorDesk
    acts: ActDesk
    runs: RunDesk
    audit: AuditBook | None = None
    """None: what operators did is not kept."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server listens."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    outbox_limit: int = 256
    """Words that may wait for one rank."""
    hello_timeout_s: float = 10.0
    stop_grace_s: float = 5.0
    """How long calls may still run once the server stops."""
    max_message_bytes: int = 64 << 20
    keepalive_s: float = 30.0
    """After so long without a byte the server asks whether a client still lives."""
    keepalive_timeout_s: float = 10.0
    min_ping_interval_s: float = 0.9
    """Clients that ping more often, with or without calls, are sent away (too_many_pings)."""
    has_reflection: bool = True
    """Whether the server lists its services to whoever connects."""

    def channel_arguments(self) -> tuple[tuple[str, int], ...]:
        """Return these as gRPC's options, with those that are not for choice."""
        return (
            # Two servers on one port would share its callers without a word.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.keepalive_time_ms", round(self.keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.keepalive_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            # With it gRPC reads ahead by as much as a link carries: megabytes for every rank that
            # says more than is taken. Without it a message and a window of 64 KiB wait here.
            ("grpc.http2.bdp_probe", 0),
            (
                "grpc.http2.min_ping_interval_without_data_ms",
                round(self.min_ping_interval_s * 1000),
            ),
        )


@dataclass(frozen=True, slots=True)
class Locks:
    """How the door is locked; by default it is not, for a port that only this machine reaches."""

    credentials: grpc.ServerCredentials | None = None
    """None: plain text."""
    doorman: Doorman | None = None
    """None: nobody is asked who they are, and everybody may do everything."""
    limits: Limits = Limits()  # noqa: RUF009 -- frozen
    note: Note = note_nothing
    """Keeps a record of refusals."""


class ControllerServer:
    """Serves the desks on one port; not serving in the sense of health until it leads."""

    def __init__(
        self,
        desks: Desks,
        recorder: Recorder,
        options: ServerOptions,
        locks: Locks | None = None,
    ) -> None:
        """Take what is needed; nothing is opened before `start`."""
        self._options = options
        self._locks = locks or Locks()
        self._agents = AgentService(
            desks.ranks,
            recorder,
            outbox_limit=options.outbox_limit,
            hello_timeout_s=options.hello_timeout_s,
        )
        self._operators = AdminService(
            desks.operators, desks.acts, desks.runs, desks.ranks, desks.audit
        )
        self._health = Health(SERVICES)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Listen, and return the port; raises BindFailed, with nothing left open."""
        assert self._server is None, "a server starts once"
        locks = self._locks
        gate = Gate(locks.doorman, locks.limits, locks.note)
        server = grpc.aio.server(interceptors=[gate], options=self._options.channel_arguments())
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self._agents, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(
            cast("admin_pb2_grpc.AdminServiceServicer", self._operators), server
        )
        self._health.register(server)
        if self._options.has_reflection:
            names = (*SERVICES, HEALTH_SERVICE, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        await self.lead(is_leading=False)
        port = self._bind(server)
        await server.start()
        self._server = server
        log.info("server listens", extra={"host": self._options.host, "port": port})
        return port

    async def lead(self, *, is_leading: bool) -> None:
        """Tell health checks whether this controller leads."""
        await self._health.lead(is_leading=is_leading)

    async def stop(self) -> None:
        """Refuse new calls, end the ranks' streams, and let calls end within the grace."""
        if self._server is None:
            return
        await self._health.close()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._server.stop(self._options.stop_grace_s))
            self._agents.close("the controller stops; connect again")
        log.info("server stopped")

    def _bind(self, server: grpc.aio.Server) -> int:
        """Take the address."""
        host, wanted = self._options.host, self._options.port
        address = f"[{host}]:{wanted}" if ":" in host else f"{host}:{wanted}"
        try:
            if self._locks.credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._locks.credentials)
        except RuntimeError as error:
            raise BindFailed(
                f"address {address} cannot be taken ({error}); expected one that no other process "
                "holds; the server does not start"
            ) from error
        return port
