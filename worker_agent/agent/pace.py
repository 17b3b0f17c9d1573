"""How patiently the agent's loop waits, and how it spreads its connecting anew."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Waits of the agent's loop, in seconds."""

    poll_s: float = 0.25
    """Longest sleep between two looks; the bell cuts it short."""
    idle_after_s: float = 5.0
    """Without a step for so long the group is told to be idle."""
    welcome_within_s: float = 10.0
    """A stream on which no Welcome came is given up."""
    first_backoff_s: float = 0.2
    max_backoff_s: float = 10.0


class Backoff:
    """Exponential back-off with jitter, so that ranks do not come back all at once.

    chance()    a number in [0, 1)
    """

    def __init__(self, pace: Pace, chance: Callable[[], float]) -> None:
        self._pace = pace
        self._chance = chance
        self._limit_s = pace.first_backoff_s

    def next_s(self) -> float:
        """Return the next wait: at least half of the limit, which doubles each time."""
        limit_s = self._limit_s
        self._limit_s = min(2 * limit_s, self._pace.max_backoff_s)
        return limit_s * (0.5 + 0.5 * self._chance())

    def served(self, seconds: float) -> None:
        """A stream worked for so long: begin anew if that was at least the longest wait.

        One that ends soon after its Welcome will not be better the next time: its rank is claimed
        twice, or what comes next cannot be carried.
        """
        if seconds >= self._pace.max_backoff_s:
            self._limit_s = self._pace.first_backoff_s
