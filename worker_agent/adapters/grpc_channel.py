"""The street to the controller over gRPC.

The blocking API on threads of its own, not grpc.aio: an engine may run event loops of
its own in this process, and grpc.aio serves several loops badly.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from queue import Empty, Full, Queue, SimpleQueue
from threading import Semaphore, Thread

import grpc
from eplb.v1 import agent_pb2, agent_pb2_grpc

from eplb_service.domain.errors import EplbError, InvalidSettings
from eplb_service.protocol.messages import Down, Up
from eplb_service.wire.down import decode_down
from eplb_service.wire.up import encode_up
from worker_agent.adapters.trust import Options, Trust
from worker_agent.ports.channel import StreamLost

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_WAITING = 64
"""Words under way in each direction; beyond it the sender is told to wait."""
CODE_KEY = "eplb-code"
"""Trailing metadata in which the controller names a failure."""
ENDPOINT_KEY = "eplb-endpoint"
"""Trailing metadata in which a controller names the one that has the deployment."""
REFUSING = (
    *(grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT),
    *(grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED),
)
"""Statuses of a controller that judged what this rank said, and says no."""
AUTHORIZATION = "authorization"


@dataclass(frozen=True, slots=True)
class Keepalive:
    """How a silent connection is noticed to be dead; within what the server allows."""

    every_s: float
    timeout_s: float


class GrpcChannel:
    """Meets ChannelPort; every stream has a connection of its own.

    endpoint    host:port, or several with commas between them: each stream goes to the next one
                in turn, since only a new stream tells which controller leads

    A controller that does not have this deployment names the one that has it: the next streams
    go there, once each; then it is asked again.
    """

    def __init__(self, endpoint: str, keepalive: Keepalive, trust: Trust | None = None) -> None:
        """Open nothing yet; raises InvalidSettings where the trust does not fit the endpoint."""
        endpoints = [part.strip() for part in endpoint.split(",")]
        self._endpoints = cycle(endpoints)
        self._named = deque[str]()
        """Endpoints that the last controller to say so named, not asked yet."""
        self._trust = trust or Trust()
        for one in endpoints:
            self._trust.require_fit(one)
        self._options: Options = [
            ("grpc.keepalive_time_ms", int(1000 * keepalive.every_s)),
            ("grpc.keepalive_timeout_ms", int(1000 * keepalive.timeout_s)),
            # Its own limit, of a minute, would otherwise be waited for as well.
            ("grpc.http2.ping_timeout_ms", int(1000 * keepalive.timeout_s)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]

    def open(self, ring: Callable[[], None]) -> "GrpcStream":
        """Open a stream; whether anybody answers is seen when it is read.

        Raises StreamLost where a file of keys cannot be read just now.
        """
        endpoint = self._next()
        try:
            self._trust.require_fit(endpoint)
            token = self._trust.token()
            channel = self._trust.channel(endpoint, self._options)
        except InvalidSettings as wrong:
            raise StreamLost(endpoint=endpoint, cause=str(wrong), refusal=str(wrong)) from wrong
        metadata = ((AUTHORIZATION, f"Bearer {token}"),) if token else ()
        return GrpcStream(endpoint, channel, ring, metadata, self._follow)

    def _next(self) -> str:
        named = self._named
        return named.popleft() if named else next(self._endpoints)

    def _follow(self, endpoint: str) -> None:
        log.info("deployment is elsewhere", extra={"endpoint": endpoint})
        self._named = deque(part.strip() for part in endpoint.split(","))


class GrpcStream:
    """Meets Stream."""

    def __init__(
        self,
        endpoint: str,
        channel: grpc.Channel,
        ring: Callable[[], None],
        metadata: tuple[tuple[str, str], ...] = (),
        follow: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._endpoint = endpoint
        self._channel = channel
        self._ring = ring
        self._follow = follow
        self._outgoing: Queue[agent_pb2.UpMessage | None] = Queue(MAX_WAITING)
        self._incoming: SimpleQueue[agent_pb2.DownMessage] = SimpleQueue()
        self._room = Semaphore(MAX_WAITING)
        self._end: str | None = None
        self._refusal = ""
        self._call = agent_pb2_grpc.AgentServiceStub(channel).Connect(
            self._requests(), metadata=metadata
        )
        self._reader = Thread(target=self._read, name="eplb-stream", daemon=True)
        self._reader.start()

    def send(self, word: Up) -> bool:
        """Take a word to be sent; False while too many wait already. Raises StreamLost."""
        if self._end is not None:
            raise self._lost(self._end)
        try:
            self._outgoing.put_nowait(encode_up(word))
        except Full:
            return False
        return True

    def receive(self) -> Down | None:
        """Return the next word that came, or None. Raises StreamLost once all are read.

        A word that cannot be read is logged and left out: the wave that it was about ends at
        its deadline, while a lost stream would only bring the same word again.
        """
        while True:
            end = self._end  # looked at first: what came before the end is still to be read
            try:
                message = self._incoming.get_nowait()
            except Empty:
                if end is not None:
                    raise self._lost(end) from None
                return None
            self._room.release()
            try:
                return decode_down(message)
            except EplbError as error:
                log.warning("word left out", extra={"code": error.code, "text": str(error)})

    def close(self) -> None:
        """End the stream; harmless if it has ended."""
        self._end = self._end or "closed here"
        self._call.cancel()
        with suppress(Full):  # then its reader is not waiting for more, and ends with the call
            self._outgoing.put_nowait(None)
        self._room.release()
        self._channel.close()

    def _lost(self, end: str) -> StreamLost:
        return StreamLost(endpoint=self._endpoint, cause=end, refusal=self._refusal)

    def _requests(self) -> Iterator[agent_pb2.UpMessage]:
        while (message := self._outgoing.get()) is not None:
            yield message

    def _read(self) -> None:
        try:
            for message in self._call:
                self._room.acquire()
                if self._end is not None:
                    break
                self._incoming.put(message)
                self._ring()
            self._end = self._end or "the controller ended it"
        except grpc.RpcError as error:
            for endpoint in _told(error, ENDPOINT_KEY):
                self._follow(endpoint)
            self._refusal = _refusal(error)
            self._end = self._end or _cause(error)
        finally:  # a reader that is gone without a word would be waited for until the end
            self._end = self._end or "its reader failed"
            self._ring()


def _cause(error: grpc.RpcError) -> str:
    """Return status, failure code and text of the controller, as far as they came."""
    if not isinstance(error, grpc.Call):
        return str(error)
    return " ".join([error.code().name, *_told(error, CODE_KEY), str(error.details())])


def _refusal(error: grpc.RpcError) -> str:
    """Return why the controller does not take this rank; empty where a retry alone may help."""
    is_named = bool(_told(error, CODE_KEY)) and not _told(error, ENDPOINT_KEY)
    return _cause(error) if is_named and _status(error) in REFUSING else ""


def _status(error: grpc.RpcError) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call) else None


def _told(error: grpc.RpcError, key: str) -> list[str]:
    """Return what the controller put beside its refusal under one key."""
    if not isinstance(error, grpc.Call):
        return []
    return [str(entry.value) for entry in error.trailing_metadata() or () if entry.key == key]
