"""The ranks' service: one stream per rank, from its Hello to its end.

A stream has a reader, a writer and a watcher of its outbox; the first that ends, ends all.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc.aio
from eplb.v1 import agent_pb2, agent_pb2_grpc

from eplb_service.controller.desk import RankDesk, RankLink
from eplb_service.controller.ports import Recorder
from eplb_service.domain.errors import DeadlineExceeded, InvalidRequest
from eplb_service.protocol.messages import Hello
from eplb_service.server.calls import Answering, to_the_end
from eplb_service.server.gate import admission
from eplb_service.server.outbox import BoundedOutbox
from eplb_service.server.reader import RankKey, RankReader
from eplb_service.server.status import StreamClosed
from eplb_service.wire.down import encode_down
from eplb_service.wire.up import decode_up

log = logging.getLogger(__name__)

Messages = AsyncIterator[agent_pb2.UpMessage]
Stream = grpc.aio.ServicerContext[agent_pb2.UpMessage, agent_pb2.DownMessage]


class AgentService(agent_pb2_grpc.AgentServiceServicer):
    """Brings ranks to the desk; a second stream of the same rank replaces the first."""

    def __init__(
        self, desk: RankDesk, recorder: Recorder, *, outbox_limit: int, hello_timeout_s: float
    ) -> None:
        self._desk = desk
        self._recorder = recorder
        self._outbox_limit = outbox_limit
        self._hello_timeout_s = hello_timeout_s
        self._streams: dict[RankKey, BoundedOutbox] = {}
        self._stopped = ""

    # The generated stub knows handlers that yield, not those that write to the context; only the
    # latter learn at once, and in their own `finally`, that the stream is gone.
    async def Connect(  # pyright: ignore[reportIncompatibleMethodOverride] # noqa: N802
        self, request_iterator: Messages, context: Stream
    ) -> None:
        """Serve one rank's stream until either side ends it."""
        async with Answering(context):
            await self._serve(aiter(request_iterator), context)

    def close(self, reason: str) -> None:
        """End every stream with its last word, and those that come later at their Hello."""
        self._stopped = reason
        for outbox in tuple(self._streams.values()):
            outbox.finish(reason)

    async def _serve(self, messages: Messages, context: Stream) -> None:
        """Greet a rank, then carry words both ways."""
        hello = await self._first_word(messages)
        key = RankKey(hello.identity.name, hello.profile.rank)
        await admission().require_rank(*key)
        outbox = BoundedOutbox(self._outbox_limit)
        fields = {"deployment": key.deployment, "rank": key.rank, "peer": context.peer()}
        links: list[RankLink] = []

        async def greet(hello: Hello) -> None:
            links.append(await self._desk.hello(hello, outbox))

        greeting = greet(hello)
        del hello  # it brings a whole placement, which the desk keeps once for all ranks
        try:
            # A stream that ends meanwhile has a link all the same, which must learn of it.
            await to_the_end(greeting)
            self._seat(key, outbox)
            log.info("stream opened", extra=fields)
            await _carry(RankReader(key, links[0], self._recorder), messages, outbox, context)
        finally:
            outbox.close("the stream ended")
            if self._streams.get(key) is outbox:
                del self._streams[key]
            for link in links:
                await to_the_end(link.closed())
                log.info("stream closed", extra=fields)

    def _seat(self, key: RankKey, outbox: BoundedOutbox) -> None:
        """Let the newest stream of a rank be its only one."""
        before = self._streams.get(key)
        if before is not None:
            before.close(f"rank {key.rank} opened a newer stream; this one is closed")
        self._streams[key] = outbox
        if self._stopped:
            outbox.close(self._stopped)

    async def _first_word(self, messages: Messages) -> Hello:
        """Return the Hello that a stream must begin with."""
        try:
            async with asyncio.timeout(self._hello_timeout_s):
                message = await anext(messages, None)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no word within {self._hello_timeout_s} s; expected Hello; the stream is closed"
            ) from None
        first = None if message is None else decode_up(message)
        if not isinstance(first, Hello):
            got = "nothing" if first is None else type(first).__name__
            raise InvalidRequest(f"a stream began with {got}; expected Hello; the stream is closed")
        return first


async def _carry(
    reader: RankReader, messages: Messages, outbox: BoundedOutbox, context: Stream
) -> None:
    """Carry words both ways; returns when the rank has no more, raises what ended it else."""
    # Otherwise the first write does it, and a stream that must end during that write cannot: gRPC
    # refuses to send its status, and the rank would wait for ever.
    await context.send_initial_metadata(())
    try:
        async with asyncio.TaskGroup() as tasks:
            others = (
                tasks.create_task(_write(outbox, context)),
                tasks.create_task(_watch(outbox)),
            )
            await reader.read(messages)
            for task in others:
                task.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _write(outbox: BoundedOutbox, context: Stream) -> None:
    """Send word after word."""
    while True:
        word = encode_down(await outbox.next())
        try:
            await context.write(word)
        except grpc.aio.InternalError as error:
            # gRPC ends a write that waits for the rank before it cancels this call.
            raise StreamClosed("the rank left while a word was on its way") from error


async def _watch(outbox: BoundedOutbox) -> None:
    """Fail when the controller closes the stream, also while a write waits for the rank."""
    raise StreamClosed(await outbox.closed())
