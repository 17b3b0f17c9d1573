"""The machine's clock."""

import time


class SystemClock:
    """Real time, as a clock.Clock."""

    def monotonic_s(self) -> float:
        """Seconds on the machine's monotonic clock."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()
