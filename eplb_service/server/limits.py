"""How much one caller may send: buckets that fill with time and empty with what comes."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from eplb_service.domain.errors import TooManyRequests

MOST_CALLERS = 4096
"""Buckets kept; the caller that was silent longest begins anew."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one rank's stream and one operator may send."""

    words_per_s: float = 200.0
    """Words and reports of one stream; beyond it the stream is read more slowly."""
    words_at_once: float = 400.0
    own_words_per_s: float = 20.0
    """Of them, what every stream is read whatever others say: ten times what a rank reports."""
    own_words_at_once: float = 100.0
    spare_words_per_s: float = 500.0
    """What all streams together may say beyond it, so that many that flood leave others room;
    twice as many at once."""
    bytes_per_s: float = 64.0 * 2**20
    bytes_at_once: float = 256.0 * 2**20
    calls_per_s: float = 100.0
    """Calls of one operator; beyond it they are refused."""
    calls_at_once: float = 500.0
    call_bytes: int = 1 << 20
    """Of a request that carries no file."""


class Bucket:
    """So much at once, and so much more with every second."""

    def __init__(self, per_s: float, at_once: float, now_s: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left, self._at_s = at_once, now_s

    def take(self, amount: float, now_s: float) -> float:
        """Take an amount, on credit if need be; return the seconds until the debt is paid."""
        self._fill(now_s)
        self._left -= amount
        return max(0.0, -self._left / self._per_s)

    def has(self, amount: float, now_s: float) -> bool:
        """Whether so much is there; if so it is taken."""
        self._fill(now_s)
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def _fill(self, now_s: float) -> None:
        self._left = min(self._at_once, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s


class CallLimiter:
    """Refuses callers that call too often; one never pays for another."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def require(self, caller: str) -> None:
        """Count one call; raises TooManyRequests."""
        limits, now_s = self._limits, self._clock()
        bucket = self._buckets.pop(caller, None) or Bucket(
            limits.calls_per_s, limits.calls_at_once, now_s
        )
        self._buckets[caller] = bucket
        while len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        if not bucket.has(1, now_s):
            raise TooManyRequests(
                f"{caller} calls more than {limits.calls_per_s:g} times a second; this call was "
                "not read, call again more slowly"
            )


class SpareWords(Bucket):
    """What all streams of one server share beyond what is each one's own."""

    def __init__(self, limits: Limits, now_s: float) -> None:
        super().__init__(limits.spare_words_per_s, 2 * limits.spare_words_per_s, now_s)


class StreamMeter:
    """Says how long to wait before the next word of one stream is taken."""

    def __init__(self, limits: Limits, now_s: float, spare: SpareWords) -> None:
        self._own = Bucket(limits.own_words_per_s, limits.own_words_at_once, now_s)
        self._spare = spare
        self._words = Bucket(limits.words_per_s, limits.words_at_once, now_s)
        self._bytes = Bucket(limits.bytes_per_s, limits.bytes_at_once, now_s)

    def wait_s(self, num_bytes: int, now_s: float) -> float:
        """Count one word; return the seconds for which nothing more should be read."""
        beyond_s = 0.0 if self._own.has(1, now_s) else self._spare.take(1, now_s)
        return max(beyond_s, self._words.take(1, now_s), self._bytes.take(num_bytes, now_s))
