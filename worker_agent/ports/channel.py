"""The street to the controller, as the agent's loop sees it."""

from collections.abc import Callable
from typing import Protocol

from eplb_service.protocol.messages import Down, Up


class StreamLost(Exception):
    """The stream ended or could not be opened; the agent opens another later.

    refusal    why the controller does not take this rank, which time alone will not change; empty
               where the stream was lost by something else
    """

    code = "stream_lost"

    def __init__(self, *, endpoint: str, cause: str, refusal: str = "") -> None:
        self.refusal = refusal
        super().__init__(
            f"the stream to {endpoint} is lost ({cause}); steps go on at the placement that is "
            "served, and the agent connects again after a while"
        )


class Stream(Protocol):
    """One stream, from Hello on. No method waits."""

    def send(self, word: Up) -> bool:
        """Take a word to be sent; False while too many wait already. Raises StreamLost."""
        ...

    def receive(self) -> Down | None:
        """Return the next word that came, or None. Raises StreamLost once all are read."""
        ...

    def close(self) -> None:
        """End the stream; harmless if it has ended."""
        ...


class ChannelPort(Protocol):
    """Opens streams."""

    def open(self, ring: Callable[[], None]) -> Stream:
        """Open a stream; `ring` is called, on any thread, when there is something to receive.

        Raises StreamLost.
        """
        ...
