"""The gate before both services: who calls, whether it may, how much, and only then what it says.

Requests pass it as bytes. A caller is named by its connection and its headers, held against the
role that the method needs and against its limits; after that its bytes are parsed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from eplb.v1 import admin_pb2
from google.protobuf.message import DecodeError, Message

from eplb_service.domain.access import Caller, Role
from eplb_service.domain.errors import AccessDenied, EplbError, InvalidRequest, Unauthenticated
from eplb_service.server.calls import Answering
from eplb_service.server.doorman import Doorman
from eplb_service.server.limits import CallLimiter, Limits, SpareWords, StreamMeter

log = logging.getLogger(__name__)

ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
READS = frozenset(
    {"Status", "Heat", "Plan", "Explain", "History", "Export", "GetConfig", "GetRun", "Audit"}
)
"""Methods that change nothing; every other needs an operator."""
WITH_FILES = frozenset({"Import"})
CONNECT = "/eplb.v1.AgentService/Connect"
NEEDED = {
    f"/{ADMIN.full_name}/{method.name}": Role.VIEWER if method.name in READS else Role.OPERATOR
    for method in ADMIN.methods
}
HANDLERS = cast("Any", grpc)
"""Makers of handlers that take bytes, which the package does not type."""
M = TypeVar("M", bound=Message)

Note = Callable[[str, str, EplbError], Awaitable[None]]
"""Notes a refusal: who, what was called, why not."""


async def note_nothing(who: str, what: str, why: EplbError) -> None:
    """Keep no record of refusals beside the log."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What the gate knows of the call that is being answered."""

    caller: Caller | None = None
    """None: nobody is asked who they are."""
    note: Note = note_nothing

    async def require_rank(self, deployment: str, rank: int) -> None:
        """Raise AccessDenied, and have it noted, unless the caller is this rank."""
        if self.caller is None:
            return
        try:
            self.caller.require_rank(deployment, rank)
        except AccessDenied as denied:
            await self.note(self.caller.uri, f"Connect as rank {rank} of {deployment}", denied)
            raise

    def signed(self, who: str) -> str:
        """Return who acts: the name that was proved, beside the one that was only said."""
        return who if self.caller is None else f"{self.caller.uri} ({who or 'unnamed'})"


ADMITTED: ContextVar[Admission] = ContextVar("ADMITTED")


def admission() -> Admission:
    """Return what the gate knows of the call that this task answers."""
    return ADMITTED.get(Admission())


class Gate(grpc.aio.ServerInterceptor):
    """Lets calls in.

    doorman    None: everybody may do everything, for a port that only this machine reaches
    """

    def __init__(self, doorman: Doorman | None, limits: Limits, note: Note = note_nothing) -> None:
        self._doorman = doorman
        self._limits = limits
        self._note = note
        self._spare: SpareWords | None = None
        self._calls = CallLimiter(limits, lambda: asyncio.get_running_loop().time())

    # The package's stubs leave out how handlers look.
    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 -- grpc.RpcMethodHandler, of any message
        """Put the gate before a method; health and reflection are open to whoever connects."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        if method in NEEDED:
            return self._guarded_call(method, handler)
        if method == CONNECT:
            return self._guarded_stream(handler)
        return handler

    def _guarded_call(self, method: str, handler: Any) -> Any:  # noqa: ANN401 -- as above
        name = method.rpartition("/")[2]

        async def call(raw: bytes, context: Any) -> Message:  # noqa: ANN401 -- as above
            async with Answering(context):
                admitted = await self._admit(context, name, NEEDED[method])
                if len(raw) > self._limits.call_bytes and name not in WITH_FILES:
                    raise InvalidRequest(
                        f"{name} came with {len(raw)} bytes; expected at most "
                        f"{self._limits.call_bytes}; they were not read"
                    )
                request = parsed(handler.request_deserializer, raw)
            ADMITTED.set(admitted)
            return await handler.unary_unary(request, context)

        return HANDLERS.unary_unary_rpc_method_handler(
            call, request_deserializer=None, response_serializer=handler.response_serializer
        )

    def _guarded_stream(self, handler: Any) -> Any:  # noqa: ANN401 -- as above
        async def connect(raws: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401
            async with Answering(context):
                admitted = await self._admit(context, "Connect", Role.AGENT)
            ADMITTED.set(admitted)
            await handler.stream_stream(self._paced(handler.request_deserializer, raws), context)

        return HANDLERS.stream_stream_rpc_method_handler(
            connect, request_deserializer=None, response_serializer=handler.response_serializer
        )

    async def _admit(self, context: Any, verb: str, needed: Role) -> Admission:  # noqa: ANN401
        """Name the caller and hold it against role and limits; raises why not, once noted."""
        host = context.peer().rpartition(":")[0]
        if self._doorman is None:
            self._count(host, needed)
            return Admission()
        who = host
        try:
            caller = self._doorman.caller(context)
            who = caller.uri
            self._count(who, needed)
            caller.require(needed, verb)
        except (Unauthenticated, AccessDenied) as refused:
            # A flood of strangers is one entry's worth of work for each call that may be made.
            self._count(host, Role.VIEWER)
            log.warning("call refused", extra={"who": who, "verb": verb, "code": refused.code})
            await self._note(who, verb, refused)
            raise
        return Admission(caller, self._note)

    def _count(self, caller: str, needed: Role) -> None:
        if needed is not Role.AGENT:
            self._calls.require(caller)

    async def _paced(
        self, parse: Callable[[bytes], M], raws: AsyncIterator[bytes]
    ) -> AsyncIterator[M]:
        """Hand on what a stream says, no faster than it may; what waits, waits at the sender."""
        loop = asyncio.get_running_loop()
        self._spare = self._spare or SpareWords(self._limits, loop.time())
        meter = StreamMeter(self._limits, loop.time(), self._spare)
        async for raw in raws:
            wait_s = meter.wait_s(len(raw), loop.time())
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            # What was taken is not kept until the next word comes: a Hello is half a megabyte.
            message = [parsed(parse, raw)]
            del raw
            yield message.pop()


def parsed(parse: Callable[[bytes], M], raw: bytes) -> M:
    """Read a message; raises InvalidRequest for bytes that are none."""
    try:
        return parse(raw)
    except DecodeError as error:
        raise InvalidRequest(
            f"{len(raw)} bytes came that are no message of this protocol; nothing was taken"
        ) from error
