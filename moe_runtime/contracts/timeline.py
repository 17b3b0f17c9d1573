"""What may run beside the routed part of a layer, and after which moment of it.

Work beside it (shared experts) runs on a second stream where a device has one. Each step of that
work waits for one named moment of the routed part, so that both want the same units of a device
as little as possible: while rows travel, matrices are multiplied. Moments are marked in their
order; a layer has a timeline of its own, so no wait can be answered by an older layer's moment.
"""

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Protocol

from moe_runtime.contracts.errors import MomentMissed

__all__ = ["InOrder", "Moment", "Timeline"]


class Moment(Enum):
    """A point of the routed part, in order."""

    ROUTED = "before tokens are routed"
    DISPATCH = "before rows are dispatched"
    DOWN = "before experts project down"
    COMBINE = "before results are combined"


class Timeline(Protocol):
    """The order of one layer's work on up to two streams."""

    def mark(self, moment: Moment) -> None:
        """Say on the main stream that a moment is reached; the first time counts."""
        ...

    def beside(self) -> AbstractContextManager[None]:
        """Return what puts the work inside it on the second stream, where there is one."""
        ...

    def wait(self, moment: Moment) -> None:
        """Hold the second stream until the main one has reached a moment.

        Raises MomentMissed for one that was not marked: on a device nothing would ever wake it.
        """
        ...

    def join(self) -> None:
        """Hold the main stream until all work beside it is done."""
        ...


class InOrder:
    """Meets `Timeline` with one stream: what is beside the routed part simply follows it."""

    def __init__(self) -> None:
        self._marked: set[Moment] = set()

    def mark(self, moment: Moment) -> None:
        """Remember that the moment is reached."""
        self._marked.add(moment)

    def beside(self) -> AbstractContextManager[None]:
        """Return nothing to enter: there is one stream."""
        return nullcontext()

    def wait(self, moment: Moment) -> None:
        """Go on, since on one stream what was marked is over; raises MomentMissed."""
        if moment not in self._marked:
            raise MomentMissed(moment.value, marked=sorted(m.value for m in self._marked))

    def join(self) -> None:
        """Go on: on one stream everything is done in order."""
