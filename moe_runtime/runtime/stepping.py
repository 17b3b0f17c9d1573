"""One step at a time: of a runtime, and over a group of ranks.

A step reads what `install` and `set_table` replace, and pairs its collectives with its peers' by
their order alone. Two at a time would read half of a change, or each other's rows.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from moe_runtime.contracts.errors import StepsOverlap
from moe_runtime.exchange.agreeing import agree, agree_on_experts
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.standing import standing_of
from moe_runtime.runtime.device import Device
from moe_runtime.runtime.surroundings import undisturbed

__all__ = ["OneAtATime", "one_at_a_time"]

P = ParamSpec("P")
R = TypeVar("R")


class OneAtATime:
    """Lets one call of one runtime in, and one step over its group."""

    def __init__(self, peers: Peers) -> None:
        self._own = Lock()
        self._peers = peers
        self.standing = standing_of(peers)

    @contextmanager
    def taken(self, what: str) -> Generator[None]:
        """Be the only one in here.

        Raises StepsOverlap, at once, if somebody else is, and GroupLost.
        """
        for lock in (held := (self._own, self.standing.lock)):
            if not lock.acquire(blocking=False):
                for other in held[: held.index(lock)]:
                    other.release()
                raise StepsOverlap(what)
        try:
            self.standing.require()
            yield
        finally:
            for lock in held:
                lock.release()

    def number_of(
        self, alike: Mapping[str, int], marks_LE: npt.NDArray[np.int64], *, home: torch.device
    ) -> int:
        """Refuse ranks that would serve differently; return the number of a runtime that is built.

        alike       settings that must be the same on every rank
        marks_LE    checksums of what this rank has read of each expert, 0 where it has not

        The first exchange has one size whatever a rank was told to serve, and the second one that
        of the model on which ranks agreed in the first. Raises RanksDisagree, on all ranks alike,
        after which the group is as usable as before, and what `taken` raises.
        """
        with self.taken("MoeRuntime"):
            agree(self._peers, "how tokens are exchanged", alike, home=home)
            agree_on_experts(self._peers, marks_LE, home=home)
            return self.standing.next_number()


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
