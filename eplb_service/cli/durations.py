"""Spans of time as operators write and read them."""

import re
from math import isfinite

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
EXAMPLES = "for example 90s, 30m, 2h, 1h30m, 1d"
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> float:
    """Read a span of time in seconds; raises ValueError with examples.

    >>> parse_duration("1h30m")
    5400.0
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is no span of time; write a number with its unit, {EXAMPLES}")
    seconds = sum(float(number) * UNITS[unit] for number, unit in _PART.findall(text))
    if seconds <= 0:
        raise ValueError(f"{text!r} is no time at all; write more than nothing, {EXAMPLES}")
    return seconds


def show_duration(seconds: float) -> str:
    """Write a span of time in its two largest units.

    >>> show_duration(192), show_duration(0.4), show_duration(7230), show_duration(float("inf"))
    ('3m12s', '0.4s', '2h00m', 'no data')
    """
    if not isfinite(seconds):
        return "no data"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
