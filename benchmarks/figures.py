"""What a measurement found, with the limits that it must keep."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Figure", "broken", "table", "write"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. Limits are ratios, or hold on any machine that the project is meant for."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    """None: for information."""

    @property
    def is_broken(self) -> bool:
        """Whether the limit is not kept; a figure that is not a number keeps none."""
        return self.at_most is not None and not self.value <= self.at_most


def broken(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures that do not keep their limits."""
    return [figure for figure in figures if figure.is_broken]


def table(title: str, figures: Sequence[Figure]) -> str:
    """Return figures for people.

    >>> print(table("planner", [Figure("ratio", 1.5, "", 1.2)]).split()[-6:])
    ['1.5', 'OVER', 'THE', 'LIMIT', 'of', '1.2']
    """
    return "\n".join([title, *(_row(figure) for figure in figures)])


def _row(figure: Figure) -> str:
    row = f"  {figure.name:<46} {figure.value:>10.4g} {figure.unit:<8}"
    if figure.at_most is None:
        return row.rstrip()
    kept = "at most" if not figure.is_broken else "OVER THE LIMIT of"
    return f"{row} {kept} {figure.at_most:g}"


def write(name: str, figures: Sequence[Figure], folder: Path) -> Path:
    """Write figures for machines as bench-NAME.json and return the file."""
    path = folder / f"bench-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"name": name, "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path
