"""The admin service over gRPC: every call has a deadline, every failure an exit code."""

import time
from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import Protocol, Self, TypeVar

import grpc
from eplb.v1 import admin_pb2, admin_pb2_grpc
from google.protobuf.message import Message

from eplb_service.cli.durations import show_duration
from eplb_service.cli.ends import Absent, Elsewhere, Failure, Misfit, Unanswered, exit_of
from eplb_service.cli.handshake import misfit
from eplb_service.cli.keys import Keys

CODE_KEY = "eplb-code"
ENDPOINT_KEY = "eplb-endpoint"
MAX_MESSAGE_BYTES = 64 << 20
LONGEST_CALL_S = 24 * 3600.0
"""One call's own limit, for commands that go on until they are stopped."""
LOOK_S = 2.0
"""How long each of several controllers may take to say that it leads."""
NEVER_REACHED = "failed to connect"
"""How gRPC words that a request was never sent."""
REFUSED = "Connection refused"
"""How it words that nobody listens."""
SILENCE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
KINDS = {
    "not_leader": Unanswered,
    "store_unavailable": Unanswered,
    "unknown_deployment": Absent,
}
"""Refusals that a command which waits lives through; by the stable code."""
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
    # Controllers are reached directly; a proxy for web pages knows nothing of them.
    ("grpc.enable_http_proxy", 0),
)

Asked_contra = TypeVar("Asked_contra", bound=Message, contravariant=True)
Answered_co = TypeVar("Answered_co", bound=Message, covariant=True)
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Method(Protocol[Asked_contra, Answered_co]):
    """One method of a stub."""

    def __call__(
        self,
        request: Asked_contra,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
    ) -> Answered_co:
        """Ask, and wait at most `timeout` seconds."""
        ...


class Client:
    """One connection to one controller, with one deadline for all that is asked of it.

    endpoint    host:port, or several with commas between them: the first that leads is asked

    longest_call_s       what one call may take of the deadline
    has_been_answered    whether any call was
    """

    def __init__(self, endpoint: str, *, timeout_s: float, keys: Keys | None = None) -> None:
        self.endpoint = endpoint
        self.keys = keys or Keys()
        self.timeout_s = timeout_s
        self.longest_call_s = LONGEST_CALL_S
        self.has_been_answered = False
        self._named = endpoint
        self._give_up_at = time.monotonic() + timeout_s

    def __enter__(self) -> Self:
        """Open nothing yet: the first call does."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.reconnect()

    def reconnect(self, endpoint: str = "") -> None:
        """Let the next call open a connection of its own; to the endpoints named at first, or one.

        One that was lost waits ever longer before it tries again, and tells nothing of why.
        """
        if "_channel" in vars(self):
            self._channel.close()
        for opened in ("_channel", "stub"):
            vars(self).pop(opened, None)
        self.endpoint = endpoint or self._named

    @cached_property
    def _channel(self) -> grpc.Channel:
        if "," in self.endpoint:
            self.endpoint = self._leader_of(self.endpoint.split(","))
        return self.keys.channel(self.endpoint, OPTIONS)

    def _leader_of(self, endpoints: Sequence[str]) -> str:
        """Return the first whose controller leads, or else the first, to complain of."""
        for endpoint in endpoints:
            with self.keys.channel(endpoint, OPTIONS) as channel:
                stub = admin_pb2_grpc.AdminServiceStub(channel)
                try:
                    stub.Status(
                        admin_pb2.StatusRequest(), timeout=LOOK_S, metadata=self.keys.headers()
                    )
                except grpc.RpcError:
                    continue
                return endpoint
        return endpoints[0]

    @cached_property
    def stub(self) -> admin_pb2_grpc.AdminServiceStub:
        """The controller's verbs; raises Failure where keys and endpoint do not fit."""
        return admin_pb2_grpc.AdminServiceStub(self._channel)

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, not below 0."""
        return max(0.0, self._give_up_at - time.monotonic())

    def ask(self, method: Method[Request, Response], request: Request) -> Response:
        """Call a method; raises Failure with the controller's own words."""
        return self._call(method, request, on_silence="nothing was changed by this command")

    def act(self, method: Method[Request, Response], request: Request, request_id: str) -> Response:
        """Call a method that changes something; if no answer comes, say how to ask again."""
        again = (
            f"whether it acted is not known; ask again with --request-id {request_id}, the same "
            "id acts once unless the controller restarted: then look at `eplbctl history` first"
        )
        return self._call(method, request, on_silence=again)

    def _call(
        self, method: Method[Request, Response], request: Request, *, on_silence: str
    ) -> Response:
        headers = self.keys.headers()
        limit_s = min(self.remaining_s, self.longest_call_s)
        try:
            response = method(request, timeout=limit_s, metadata=headers)
        except grpc.RpcError as error:
            raise self._failure(error, on_silence) from error
        self.has_been_answered = True
        return response

    def _failure(self, error: grpc.RpcError, on_silence: str) -> Failure:
        assert isinstance(error, grpc.Call)
        limit_s = min(self.timeout_s, self.longest_call_s)
        status, text, code = error.code(), error.details() or "", _told(error, CODE_KEY)
        if endpoint := _told(error, ENDPOINT_KEY):
            return Elsewhere(text, endpoint=endpoint)
        if code:
            word = "refused" if code == "plan_rejected" else ""
            return KINDS.get(code, Failure)(exit_of(status, code), text, word=word)
        if NEVER_REACHED in text and (wrong := self._misfit(text)):
            return Misfit(f"{wrong}. Nothing was asked")
        match status:
            case grpc.StatusCode.UNAVAILABLE:
                why = (
                    f"no controller answers at {self.endpoint} ({_cause(text)}); is it running, "
                    "and is the endpoint right? Set it with --endpoint HOST:PORT or EPLB_ENDPOINT"
                    + ("" if NEVER_REACHED in text else f". {on_silence}")
                )
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                why = (
                    f"{self.endpoint} did not answer within {show_duration(limit_s)}; "
                    f"{on_silence}. Wait longer with --timeout"
                )
            case grpc.StatusCode.CANCELLED:
                why = f"{self.endpoint} ended while it was asked ({text}); {on_silence}"
            case grpc.StatusCode.UNIMPLEMENTED:
                why = f"{self.endpoint} does not know this verb; is it a controller of EPLB? {text}"
            case _:
                why = f"{self.endpoint}: {status.name.lower()}: {text}"
        kind = Unanswered if status in SILENCE else Failure
        return kind(exit_of(status, ""), why)

    def _misfit(self, text: str) -> str:
        return "" if REFUSED in text else misfit(self.endpoint, self.keys)


def _cause(details: str) -> str:
    """The last and plainest part of what gRPC says.

    >>> _cause("failed to connect to all addresses; last error: x: Connection refused")
    'Connection refused'
    """
    return details.rpartition(": ")[2]


def _told(error: grpc.Call, wanted: str) -> str:
    """What the controller put beside its refusal under one key; empty where nothing."""
    for key, value in error.trailing_metadata() or ():
        if key == wanted:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return ""
