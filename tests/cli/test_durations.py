"""Spans of time, as people write and read them."""

import re
from math import inf, nan

import pytest

from eplb_service.cli.durations import parse_duration, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0.5s", 0.5)],
)
def test_a_number_needs_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "m", "-5m", "30 m", "1w", "1h-30m", "inf", "1e3s", "0s"]
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("for example 90s, 30m, 2h, 1h30m, 1d")):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (9.94, "9.9s"),
        (59, "59s"),
        (192, "3m12s"),
        (3600, "1h00m"),
        (90000, "1d01h"),
        (inf, "no data"),
        (nan, "no data"),
    ],
)
def test_the_two_largest_units_are_shown(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text
