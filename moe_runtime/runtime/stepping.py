"""One step at a time: of a runtime, and over a group of ranks.

A step reads what `install` and `set_table` replace, and pairs its collectives with its peers' by
their order alone. Two at a time would read half of a change, or each other's rows.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from moe_runtime.contracts.errors import StepsOverlap
from moe_runtime.exchange.peers import GroupPeers, Peers
from moe_runtime.runtime.device import Device
from moe_runtime.runtime.surroundings import undisturbed

__all__ = ["OneAtATime", "one_at_a_time"]

P = ParamSpec("P")
R = TypeVar("R")

_OF_GROUPS: dict[int, Lock] = {}
"""By the identity of a group; one that took the place of another that is gone shares its lock."""


class OneAtATime:
    """Lets one call of one runtime in, and one step over its group."""

    def __init__(self, peers: Peers) -> None:
        self._own = Lock()
        grouped = isinstance(peers, GroupPeers)
        self._group = _OF_GROUPS.setdefault(id(peers.group), Lock()) if grouped else Lock()

    @contextmanager
    def taken(self, what: str) -> Generator[None]:
        """Be the only one in here; raises StepsOverlap, at once, if somebody else is."""
        for lock in (held := (self._own, self._group)):
            if not lock.acquire(blocking=False):
                for other in held[: held.index(lock)]:
                    other.release()
                raise StepsOverlap(what)
        try:
            yield
        finally:
            for lock in held:
                lock.release()


class _Guarded(Protocol):
    @property
    def guard(self) -> OneAtATime: ...

    @property
    def device(self) -> Device: ...


S = TypeVar("S", bound=_Guarded)


def one_at_a_time(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Have calls of a method refused while another is going on, and undisturbed by autocast."""

    @wraps(method)
    def alone(self: S, /, *given: P.args, **named: P.kwargs) -> R:
        with self.guard.taken(method.__name__), undisturbed(self.device.home):
            return method(self, *given, **named)

    return alone
