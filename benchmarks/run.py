"""Measurements: `make bench`, or python -m benchmarks.run [NAME...].

Prints a table of each and writes build/bench-NAME.json. Limits are ratios, or far from what a
machine that the project is meant for needs; where one is not kept, the exit code is 1.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.figures import Figure, broken, table, write
from benchmarks.forward import measure as forward
from benchmarks.ingest import measure as ingest
from benchmarks.layer import measure as layer
from benchmarks.page import measure as page
from benchmarks.planner import measure as planner
from benchmarks.scrape import measure as scrape

__all__ = ["main"]

MEASUREMENTS: Mapping[str, Callable[[], list[Figure]]] = {
    "planner": planner.measure,
    "ingest": ingest.measure,
    "forward": forward.measure,
    "layer": layer.measure,
    "page": page.measure,
    "scrape": scrape.measure,
}


def main() -> int:
    """Run the named measurements, or all, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument(
        "--folder", type=Path, default=Path("build"), help="for the files (default: %(default)s)"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in MEASUREMENTS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    over: list[str] = []
    for name in given.names or MEASUREMENTS:
        figures = MEASUREMENTS[name]()
        print(table(name, figures))
        print(f"  written to {write(name, figures, given.folder)}", flush=True)
        over += [f"{name}: {figure.name}" for figure in broken(figures)]
    for line in over:
        print(f"over the limit: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
