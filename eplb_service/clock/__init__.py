"""Time as a port: rooms that need the time are given a Clock, and never read one themselves."""

from typing import Protocol

__all__ = ["Clock", "ManualClock"]


class Clock(Protocol):
    """Where time comes from."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch, for people and for limits that outlive a process."""
        ...


class ManualClock:
    """A clock that stands still until it is moved; for the simulator and for tests."""

    def __init__(self, *, wall_s: float = 1_000_000.0) -> None:
        self._elapsed_s = 0.0
        self._wall_s = wall_s

    def monotonic_s(self) -> float:
        """Return the seconds advanced so far."""
        return self._elapsed_s

    def wall_s(self) -> float:
        """Return the start time plus the seconds advanced so far."""
        return self._wall_s + self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._elapsed_s += seconds
