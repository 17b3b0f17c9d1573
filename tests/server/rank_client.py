"""One rank's end of a stream, as its agent would hold it."""

import asyncio
from contextlib import suppress
from typing import cast

import grpc
import grpc.aio
from eplb.v1 import agent_pb2, agent_pb2_grpc

from eplb_service.protocol.messages import Down, Hello, Up
from eplb_service.server.status import CODE_KEY
from eplb_service.wire.down import decode_down
from eplb_service.wire.up import encode_up
from tests.wire import words

Call = grpc.aio.StreamStreamCall[agent_pb2.UpMessage, agent_pb2.DownMessage]


class RankClient:
    """Says words and hears them, each within five seconds."""

    def __init__(
        self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.call: Call = agent_pb2_grpc.AgentServiceStub(channel).Connect(metadata=metadata)

    async def say(self, word: Up) -> None:
        await self.say_raw(encode_up(word))

    async def say_raw(self, message: agent_pb2.UpMessage) -> None:
        async with asyncio.timeout(5):
            await self.call.write(message)

    async def hear(self) -> Down:
        """Return the next word; raises AioRpcError when the stream has ended with a failure."""
        async with asyncio.timeout(5):
            message = await self.call.read()
        assert isinstance(message, agent_pb2.DownMessage), "the stream ended without a failure"
        return decode_down(message)

    async def greet(self, hello: Hello | None = None) -> Down:
        await self.say(hello or words.a_hello())
        return await self.hear()

    async def end(self) -> tuple[grpc.StatusCode, str, str]:
        """Read to the stream's end, without which gRPC tells no status: status, code and text."""
        async with asyncio.timeout(5):
            with suppress(grpc.aio.AioRpcError):
                while isinstance(await self.call.read(), agent_pb2.DownMessage):
                    pass
            status = await self.call.code()
            return status, code_of(await self.call.trailing_metadata()), await self.call.details()


def code_of(metadata: object) -> str:
    """The stable code of a failure."""
    pairs = dict(cast("grpc.aio.Metadata", metadata))
    return str(pairs.get(CODE_KEY, ""))
