"""The demo: `make demo`, or python -m benchmarks.demo.main.

Eight ranks serve; experts are balanced while they do; nothing of what they compute changes.
"""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from benchmarks.counts import DOMAINS
from benchmarks.demo.control import ControllerFailed
from benchmarks.demo.demo import run
from benchmarks.demo.ranks import RankFailed
from benchmarks.demo.supervisor import Options

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> int:
    """Run the demo and return its exit code: 0 if everything was right and balanced."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        return run(_options())
    except KeyboardInterrupt:
        print("interrupted; everything is taken down", file=sys.stderr)
        return _INTERRUPTED
    except (RankFailed, ControllerFailed) as failed:
        print(failed, file=sys.stderr)
        return 1


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the clean-up
    raise KeyboardInterrupt


def _options() -> Options:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="stay up after the summary, for eplbctl, until Ctrl-C"
    )
    parser.add_argument(
        "--domains",
        default="c4,github,wikipedia,arxiv",
        help="text domains in the order in which they come; where steps are slow, only the last "
        "of them (default: %(default)s)",
    )
    parser.add_argument(
        "--steps", type=int, default=400, help="steps of each domain (default: %(default)s)"
    )
    parser.add_argument(
        "--interval-ms",
        type=float,
        default=0.0,
        help="from the start of one step to the next (default: as this machine allows)",
    )
    parser.add_argument(
        "--summary",
        type=Path,
        default=Path("build/demo-summary.json"),
        help="where the figures are written (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "npu"),
        default="cpu",
        help="what experts are computed on: npu takes one Ascend NPU for each of the eight ranks "
        "(never run on one by this project; default: %(default)s)",
    )
    given = parser.parse_args()
    domains = tuple(given.domains.split(","))
    if unknown := [domain for domain in domains if domain not in DOMAINS]:
        parser.error(f"there are no counts of {', '.join(unknown)}; known: {', '.join(DOMAINS)}")
    interval_s = given.interval_ms / 1e3
    return Options(domains, given.steps, interval_s, given.summary, given.keep, given.device)


if __name__ == "__main__":
    sys.exit(main())
