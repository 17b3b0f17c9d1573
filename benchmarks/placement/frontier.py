"""A plot of balance against moves, written as SVG by hand so that no library is needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.placement.runs import Value

__all__ = ["frontier", "write_frontier"]

Record = dict[str, Value]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 460, 70, 40, 150, 60
LOWEST_EXCESS = 5e-4
"""Imbalance above 1 at the lower edge; what is nearer to 1 is drawn there."""
KINDS = (("imbalance_even", "even split", "#c44e52"), ("imbalance_shares", "best split", "#4c72b0"))


@dataclass(frozen=True, slots=True)
class _Point:
    policy: str
    colour: str
    moves: float
    excess: float


def write_frontier(records: Sequence[Record], path: Path) -> None:
    """Write the plot of these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(frontier(records), encoding="utf-8")


def frontier(records: Sequence[Record]) -> str:
    """Draw every policy by its mean moves per window and the imbalance it leaves, window 0 apart.

    Both axes are logarithmic: across, moves and one; up, what is left of the imbalance above 1.
    """
    points = _points(records)
    most = max((point.moves for point in points), default=1.0)
    worst = max((point.excess for point in points), default=1.0)
    parts = [_frame(), *_axis_of_moves(most), *_axis_of_excess(worst)]
    for point in points:
        x, y = _across(point.moves, most), _up(point.excess, worst)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{point.colour}"/>')
        parts.append(_text(x + 7, y + 4, point.policy, anchor="start"))
    for at, (_, name, colour) in enumerate(KINDS):
        y = TOP + 14 + 18 * at
        parts.append(f'<circle cx="{WIDTH - RIGHT + 20}" cy="{y - 4}" r="4" fill="{colour}"/>')
        parts.append(_text(WIDTH - RIGHT + 30, y, name, anchor="start"))
    body = "\n".join(parts)
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def _points(records: Sequence[Record]) -> list[_Point]:
    points: list[_Point] = []
    for policy in dict.fromkeys(str(record["policy"]) for record in records):
        own = [r for r in records if r["policy"] == policy and r["window"] != 0]
        for key, _, colour in KINDS:
            values = [v for r in own if isinstance(v := r[key], int | float)]
            moves = [v for r in own if isinstance(v := r["moves"], int | float)]
            if values:
                excess = max(sum(values) / len(values) - 1, LOWEST_EXCESS)
                points.append(_Point(policy, colour, sum(moves) / len(moves), excess))
    return points


def _across(moves: float, most: float) -> float:
    share = math.log10(moves + 1) / max(math.log10(most + 1), 1.0)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _up(excess: float, worst: float) -> float:
    low, high = math.log10(LOWEST_EXCESS), math.log10(max(worst, 10 * LOWEST_EXCESS))
    return HEIGHT - BOTTOM - (math.log10(excess) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _frame() -> str:
    return (
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#444"/>'
    )


def _axis_of_moves(most: float) -> list[str]:
    ticks = [0, *(10**n for n in range(1, 7) if 10**n <= most)]
    marks = [_text(_across(t, most), HEIGHT - BOTTOM + 18, f"{t:,}") for t in ticks]
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [*marks, _text(middle, HEIGHT - 16, "moves per window")]


def _axis_of_excess(worst: float) -> list[str]:
    ticks = [t for t in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0) if t <= worst]
    marks = [_text(LEFT - 8, _up(t, worst) + 4, f"{1 + t:.3f}", anchor="end") for t in ticks]
    return [*marks, _text(LEFT, TOP - 14, "imbalance on the window planned for")]


def _text(x: float, y: float, words: str, *, anchor: str = "middle") -> str:
    style = f'font-family="sans-serif" font-size="12" text-anchor="{anchor}" fill="#222"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'
