"""Who stands at the door: names every caller, before a word of it is read."""

from typing import Protocol

from eplb_service.domain.access import Caller, caller_of
from eplb_service.domain.errors import Unauthenticated
from eplb_service.server.tokens import TokenBook

HEADER = "authorization"
SCHEME = "Bearer "


class Guest(Protocol):
    """The part of grpc.aio.ServicerContext that says who calls."""

    def auth_context(self) -> "dict[str, list[bytes]]":
        """Return what the connection's certificate says."""
        ...

    def invocation_metadata(self) -> "tuple[tuple[str, str | bytes], ...] | None":
        """Return the call's headers."""
        ...


class Doorman:
    """Names callers by token, else by certificate.

    tokens    None: none is known, and one that is shown is refused
    """

    def __init__(self, tokens: TokenBook | None) -> None:
        self._tokens = tokens

    def caller(self, guest: Guest) -> Caller:
        """Return who calls; raises Unauthenticated."""
        token = _token(guest)
        if token is not None:
            if self._tokens is None:
                raise Unauthenticated(
                    "a token was sent, and this controller knows none (security.tokens is not "
                    "set); nothing was done"
                )
            return self._tokens.caller(token)
        names = [
            uri.decode("utf-8", "backslashreplace")
            for uri in guest.auth_context().get("peer_uri", [])
            if uri.startswith(b"eplb://")
        ]
        if len(names) != 1:
            raise Unauthenticated(
                f"no token was sent, and the caller's certificate holds {len(names)} eplb:// "
                "names; expected one of either; nothing was done"
            )
        return caller_of(names[0])


def _token(guest: Guest) -> str | None:
    """The bearer token of a call, None where there is none; raises Unauthenticated."""
    sent = [value for key, value in guest.invocation_metadata() or () if key == HEADER]
    if not sent:
        return None
    (first, *others) = sent
    if others or not isinstance(first, str) or not first.startswith(SCHEME):
        raise Unauthenticated(
            "the header `authorization` is sent twice or is no bearer token; expected "
            "`Bearer TOKEN` once; nothing was done"
        )
    return first.removeprefix(SCHEME)
