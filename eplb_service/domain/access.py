"""Who calls, and what each caller may do.

A caller is named by a URI, in the subject alternative names of its certificate or beside its
token; the form follows SPIFFE's idea of a path below a fixed scheme:

eplb://agent/DEPLOYMENT/RANK     one rank; DEPLOYMENT is its whole name, with its slashes, and
                                 percent-encoded where it holds other characters; RANK may be *
eplb://operator/NAME             may read and change
eplb://viewer/NAME               may read
"""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

from eplb_service.domain.errors import AccessDenied, Unauthenticated

SCHEME = "eplb://"
ANY_RANK = "*"


class Role(StrEnum):
    """What a caller is."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    AGENT = "agent"


MAY: dict[Role, frozenset[Role]] = {
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.OPERATOR: frozenset({Role.VIEWER, Role.OPERATOR}),
    Role.AGENT: frozenset({Role.AGENT}),
}
"""Which needs a role meets."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller, as its certificate or its token names it."""

    role: Role
    name: str
    """Of a person or program; of an agent the deployment."""
    rank: int | None = None
    """Of an agent; None: any rank of the deployment."""

    @property
    def uri(self) -> str:
        """The caller's name in full."""
        if self.role is not Role.AGENT:
            return f"{SCHEME}{self.role}/{quote(self.name, safe='')}"
        rank = ANY_RANK if self.rank is None else str(self.rank)
        return f"{SCHEME}{self.role}/{quote(self.name)}/{rank}"

    def require(self, needed: Role, verb: str) -> None:
        """Raise AccessDenied unless this caller may do what needs a role."""
        if needed not in MAY[self.role]:
            raise AccessDenied(
                f"{verb} needs the role {needed}, and {self.uri} has the role {self.role}; "
                "nothing was done"
            )

    def require_rank(self, deployment: str, rank: int) -> None:
        """Raise AccessDenied unless this caller is that rank."""
        self.require(Role.AGENT, "a rank's stream")
        if self.name != deployment or self.rank not in (None, rank):
            raise AccessDenied(
                f"{self.uri} speaks for itself alone, and its Hello names rank {rank} of "
                f"{deployment}; nothing that it said was taken, the stream is closed"
            )


def caller_of(uri: str) -> Caller:
    """Read a caller's name; raises Unauthenticated for one that makes no sense.

    >>> caller_of("eplb://agent/kimi-k3/0/serve/0/0/3")
    Caller(role=<Role.AGENT: 'agent'>, name='kimi-k3/0/serve/0/0', rank=3)
    """
    role, _, path = uri.removeprefix(SCHEME).partition("/")
    deployment, _, rank = path.rpartition("/")
    if not uri.startswith(SCHEME) or role not in set(Role):
        raise _no_name(uri)
    if role != Role.AGENT:
        if not path or "/" in path:
            raise _no_name(uri)
        return Caller(Role(role), unquote(path))
    if not deployment or not (rank == ANY_RANK or (rank.isascii() and rank.isdecimal())):
        raise _no_name(uri)
    return Caller(Role.AGENT, unquote(deployment), None if rank == ANY_RANK else int(rank))


def _no_name(uri: str) -> Unauthenticated:
    return Unauthenticated(
        f"{uri[:200]!r} names no caller; expected eplb://agent/DEPLOYMENT/RANK, "
        "eplb://operator/NAME or eplb://viewer/NAME; nothing was done"
    )
