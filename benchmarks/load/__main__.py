"""make load: 1,024 agents at one controller, and an hour of reports; build/bench-load.json.

The agents are 16 deployments of 64 ranks of Kimi K3's shape over gRPC, each rank with a connection
of its own: slot counts twice a second, sent counts of replicated experts every 5 s. Apart from them
64 small deployments; four deployments while the ranks of a fifth report as fast as they can and
read nothing; and an hour of one deployment's reports, without a network, for what it leaves in
memory. What ten thousand agents need is simulated from the price of a report.
ARGS="--deployments 4 --minutes 1".
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, broken, table, write
from benchmarks.ingest.measure import MIB, OTHERS, OTHERS_OF_AGENTS, measure
from benchmarks.ingest.ranks import INTERVAL_S
from benchmarks.ingest.shape import SMALL
from benchmarks.load import scaling
from benchmarks.load.hour import REPORTS_PER_HOUR, simulate
from benchmarks.load.troublemakers import flood

_MINUTE_S = 60
_GROWTH_MIB = 10.0
"""What windows of a fixed size may grow by in an hour."""
_HELD_MIB = 48.0
"""Of 64 ranks: ten small reports of each, and three times what it sent to experts with replicas."""
_QUIET = 0.1
"""Share of the time that others may keep the core for delays to be the controller's own."""
_SMALL = 64
_FEW = 4
_SLOWER = 3.0
"""Times by which a flood may lengthen others' median: it takes a share of the one core."""
_MEDIAN, _PRICE = "send to window, median", "CPU time of a report"


def main() -> int:
    """Measure, print, and return the exit code: 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(prog="make load", description=__doc__)
    parser.add_argument("--deployments", type=int, default=16, help="of 64 ranks (default 16)")
    parser.add_argument("--minutes", type=float, default=2.0, help="over gRPC (default 2)")
    parser.add_argument(
        "--reports", type=int, default=REPORTS_PER_HOUR, help="of each rank in the hour"
    )
    parser.add_argument("--folder", type=Path, default=Path("build"), help="default %(default)s")
    asked = parser.parse_args()
    num_reports = max(1, round(asked.minutes * _MINUTE_S / INTERVAL_S))
    figures = told("", measure(asked.deployments, num_reports=num_reports))
    figures += told("small: ", measure(_SMALL, num_reports=num_reports // 4 or 1, size=SMALL))
    quiet = measure(_FEW, num_reports=num_reports // 4 or 1)
    figures += beside_a_flood(quiet, num_reports // 4 or 1)
    # Few agents leave the core idle at times: what they cost is not blurred by what queues.
    whole_s = value(quiet, _PRICE) / 1e6
    figures += told("", scaling.figures(whole_s))
    figures += told("", hour(asked.reports))
    print(f"  written to {write('load', figures, asked.folder)}", flush=True)
    over = broken(figures)
    for figure in over:
        print(f"over the limit: {figure.name}", file=sys.stderr)
    return 1 if over else 0


def beside_a_flood(quiet: Sequence[Figure], num_reports: int) -> list[Figure]:
    """What the ranks of few deployments see of another one's flood, beside a run without."""
    flooded = measure(_FEW, num_reports=num_reports, beside=flood)
    ratio = value(flooded, _MEDIAN) / value(quiet, _MEDIAN)
    return told(
        "beside a flood: ", [*flooded, Figure("median, times that without one", ratio, "", _SLOWER)]
    )


def hour(num_reports: int) -> list[Figure]:
    """What an hour of one deployment's reports leaves in memory."""
    found = simulate(num_reports)
    return [
        Figure("reports of one deployment's hour", float(found.num_reports), ""),
        Figure("memory held after it", found.held_bytes / MIB, "MiB", _HELD_MIB),
        Figure("memory grown in it", found.grown_bytes / MIB, "MiB", _GROWTH_MIB),
    ]


def told(prefix: str, figures: Sequence[Figure]) -> list[Figure]:
    """Print figures as soon as they are there, and return them under a longer name."""
    named = [replace(figure, name=f"{prefix}{figure.name}") for figure in figures]
    print(table("load", named), flush=True)
    kept = max((f.value for f in figures if f.name in (OTHERS, OTHERS_OF_AGENTS)), default=0.0)
    if kept > _QUIET:
        print(
            f"  other programs kept a core for {kept:.0%} of the time: what was late says little "
            "of the controller, the CPU time of a report does",
            flush=True,
        )
    return named


def value(figures: Sequence[Figure], name: str) -> float:
    """Return the first figure of a name."""
    return next(figure.value for figure in figures if figure.name == name)


if __name__ == "__main__":
    sys.exit(main())
