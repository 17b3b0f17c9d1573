"""The machine's clock."""

import time


class SystemClock:
    """Meets Clock."""

    def monotonic_s(self) -> float:
        """Return seconds on the machine's monotonic clock."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()
