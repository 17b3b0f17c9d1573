"""What can be made to go wrong inside a rank, without touching what is tested."""

from collections.abc import Callable
from threading import Event
from typing import ClassVar

from eplb.v1 import agent_pb2

from eplb_service.protocol.messages import Arm, Down, Up
from eplb_service.wire.down import decode_down, encode_down
from eplb_service.wire.up import decode_up, encode_up
from tests.wire.older import through
from worker_agent.adapters.mover import TorchMover
from worker_agent.ports.channel import ChannelPort, Stream
from worker_agent.ports.weights import WeightsEvent


class Faults:
    """The switches of one rank."""

    def __init__(self) -> None:
        self.holds_rounds = False
        self.loses_arms = False
        self._runs = Event()
        self._runs.set()

    def freeze(self, *, is_on: bool) -> None:
        """Stop the agent's thread at its next look at the stream, or let it go on."""
        if is_on:
            self._runs.clear()
        else:
            self._runs.set()

    def pass_by(self) -> None:
        """Where the agent's thread is frozen."""
        self._runs.wait()

    def end(self) -> None:
        """Let everything go."""
        self.holds_rounds = False
        self._runs.set()


class FaultyMover(TorchMover):
    """Keeps results back while it is told to."""

    faults: ClassVar[Faults]

    @classmethod
    def with_faults(cls, faults: Faults) -> type["FaultyMover"]:
        """Return the mover of a process; a process has one rank."""
        cls.faults = faults
        return cls

    def poll(self) -> WeightsEvent | None:
        return None if self.faults.holds_rounds else super().poll()


class FaultyChannel:
    """A street on which the agent can be frozen."""

    def __init__(self, channel: ChannelPort, faults: Faults) -> None:
        self._channel = channel
        self._faults = faults

    def open(self, ring: Callable[[], None]) -> Stream:
        self._faults.pass_by()
        return _FaultyStream(self._channel.open(ring), self._faults)


class _FaultyStream:
    def __init__(self, stream: Stream, faults: Faults) -> None:
        self._stream = stream
        self._faults = faults

    def send(self, word: Up) -> bool:
        self._faults.pass_by()
        return self._stream.send(word)

    def receive(self) -> Down | None:
        self._faults.pass_by()
        word = self._stream.receive()
        while isinstance(word, Arm) and self._faults.loses_arms:
            word = self._stream.receive()
        return word

    def close(self) -> None:
        self._stream.close()


class OlderChannel:
    """A street whose words pass through messages of the release before, both ways."""

    def __init__(self, channel: ChannelPort) -> None:
        self._channel = channel

    def open(self, ring: Callable[[], None]) -> Stream:
        return _OlderStream(self._channel.open(ring))


class _OlderStream:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def send(self, word: Up) -> bool:
        message = agent_pb2.UpMessage.FromString(through("UpMessage", encode_up(word)))
        return self._stream.send(decode_up(message))

    def receive(self) -> Down | None:
        word = self._stream.receive()
        if word is None:
            return None
        message = agent_pb2.DownMessage.FromString(through("DownMessage", encode_down(word)))
        return decode_down(message)

    def close(self) -> None:
        self._stream.close()
