"""make load: 1,024 agents at one controller, and an hour of reports; build/bench-load.json.

The agents are 16 deployments of 64 ranks of Kimi K3's shape over gRPC, each rank with a connection
of its own: slot counts twice a second, sent counts of replicated experts every 5 s. The hour is one
deployment's, without a network, for what it leaves in memory. ARGS="--deployments 4 --minutes 1".
"""

import argparse
import sys
from pathlib import Path

from benchmarks.figures import Figure, broken, table, write
from benchmarks.ingest.measure import MIB, measure
from benchmarks.ingest.ranks import INTERVAL_S
from benchmarks.load.hour import REPORTS_PER_HOUR, simulate

_MINUTE_S = 60
_GROWTH_MIB = 10.0
"""What windows of a fixed size may grow by in an hour."""


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
    hour = simulate(asked.reports)
    num_reports = max(1, round(asked.minutes * _MINUTE_S / INTERVAL_S))
    figures = [
        *measure(asked.deployments, num_reports=num_reports),
        Figure("reports of one deployment's hour", float(hour.num_reports), ""),
        Figure("memory held after it", hour.held_bytes / MIB, "MiB"),
        Figure("memory grown in it", hour.grown_bytes / MIB, "MiB", _GROWTH_MIB),
    ]
    print(table("load", figures))
    print(f"  written to {write('load', figures, asked.folder)}", flush=True)
    over = broken(figures)
    for figure in over:
        print(f"over the limit: {figure.name}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
