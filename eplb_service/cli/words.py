"""Figures in words: one way to write a number, a size, a time, a table. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import isfinite, isnan

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.domain.plan import MOST_PAYBACK

NEVER = f"never within {MOST_PAYBACK:.0e} steps"
"""What does not pay, or so late that the number says nothing."""
NO_DATA = "no data"
LABEL_WIDTH = 13
GAP = "   "
SIZES = ("KiB", "MiB", "GiB", "TiB", "PiB")


def visible(text: str) -> str:
    r"""Text whose every character can be seen: others may have written it to move a cursor.

    >>> visible("night\nshift")
    'night\\nshift'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def line(label: str, *cells: str) -> str:
    """One fact: a label, then what is said of it."""
    return label.ljust(LABEL_WIDTH) + GAP.join(visible(cell) for cell in cells)


def figure(value: float, digits: int = 2) -> str:
    """A number, or that there is none.

    >>> figure(3.5), figure(float("nan"))
    ('3.50', 'no data')
    """
    return f"{value:.{digits}f}" if isfinite(value) else NO_DATA


def size(num_bytes: float) -> str:
    """Bytes in the unit that people read.

    >>> size(900), size(11_489_000_000)
    ('900 B', '10.7 GiB')
    """
    if num_bytes < 1024:
        return f"{int(num_bytes)} B"
    for unit in SIZES[:-1]:
        num_bytes /= 1024
        if num_bytes < 1024:
            return f"{num_bytes:.1f} {unit}"
    return f"{num_bytes / 1024:.1f} {SIZES[-1]}"


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "move"), count(3, "move")
    ('1 move', '3 moves')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clock_time(unix_s: float) -> str:
    """A moment, in UTC.

    >>> clock_time(1_000_000_000)
    '2001-09-09 01:46:40Z'
    """
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def mean_and_worst(by_layer: FloatArray) -> tuple[float, float, int]:
    """Mean, worst and the row of the worst, over layers with data; NaN and -1 without.

    by_layer    [L]
    """
    if by_layer.size == 0 or bool(np.isnan(by_layer).all()):
        return float("nan"), float("nan"), -1
    worst = int(np.nanargmax(by_layer))
    return float(np.nanmean(by_layer)), float(by_layer[worst]), worst


def imbalance(mean: float, worst: float, layer: int) -> str:
    """The line of a measured imbalance."""
    if isnan(mean):
        return line("imbalance", NO_DATA)
    return line("imbalance", f"mean {figure(mean)}", f"worst {figure(worst)} (layer {layer})")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns under heads; those in `right` hold numbers and end together."""
    cells = [list(heads), *([visible(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    lines = [
        GAP.join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)
