"""The order of one layer's work on two streams of a device, by events."""

from contextlib import AbstractContextManager
from typing import Protocol

from moe_runtime.contracts.errors import MomentMissed
from moe_runtime.contracts.timeline import Moment

__all__ = ["StreamTimeline", "Streams"]


class Streams(Protocol):
    """A main stream and a second one. An event is reached when all before it on its stream is."""

    def record(self) -> object:
        """Return an event on the stream that work now goes to."""
        ...

    def wait(self, event: object) -> None:
        """Hold the stream that work now goes to until an event is reached; the host goes on."""
        ...

    def second(self) -> AbstractContextManager[None]:
        """Return what sends the work inside it to the second stream."""
        ...


class StreamTimeline:
    """Meets `Timeline`.

    What a layer makes on the second stream is used on the main one only after `join`, and the
    next layer's second stream waits for a moment after that use, so memory that goes from one to
    the other is not reused too early.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._marked: dict[Moment, object] = {}

    def mark(self, moment: Moment) -> None:
        """Record an event on the main stream, once for each moment."""
        if moment not in self._marked:
            self._marked[moment] = self._streams.record()

    def beside(self) -> AbstractContextManager[None]:
        """Send work to the second stream."""
        return self._streams.second()

    def wait(self, moment: Moment) -> None:
        """Hold the second stream until the moment; raises MomentMissed."""
        if moment not in self._marked:
            raise MomentMissed(moment.value, marked=sorted(m.value for m in self._marked))
        self._streams.wait(self._marked[moment])

    def join(self) -> None:
        """Hold the main stream until the second one is done."""
        with self._streams.second():
            done = self._streams.record()
        self._streams.wait(done)
