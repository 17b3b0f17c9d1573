"""make failover: real leaders killed and stopped, and simulated ones; what it took is printed.

Writes build/failover-summary.json. Ends with 1 if a step was wrong, a commit was lost or doubled,
or a failover took longer than the limit.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path

from tests.failover.house import House
from tests.failover.simulated import add, fail_over
from tests.soak.ledger import Ledger
from tests.store.redis_server import RedisServer

SUMMARY = Path("build/failover-summary.json")
LIMIT_S = 5.0
SQLITE, REDIS = "sqlite", "redis"


def main() -> int:
    """Fail over again and again; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--times",
        type=int,
        default=10,
        help="real failovers, half of them on each store (default 10)",
    )
    parser.add_argument("--simulated", type=int, default=200, help="default 200")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds (default 5)")
    parser.add_argument("--summary", type=Path, default=SUMMARY, help="default %(default)s")
    asked = parser.parse_args()
    told = add([fail_over(seed) for seed in range(asked.simulated)])
    print(f"simulated: {told}", flush=True)
    ledger = Ledger()
    shares = {SQLITE: asked.times // 2, REDIS: asked.times - asked.times // 2}
    found = {store: real(times, ledger, store) for store, times in shares.items()}
    seconds = [one for of_store in found.values() for one in of_store]
    summary = {
        "failovers": len(seconds),
        "seconds": {
            store: [round(one, 2) for one in of_store] for store, of_store in found.items()
        },
        "seconds_max_killed": _longest(of_store[::2] for of_store in found.values()),
        "seconds_max_stopped": _longest(of_store[1::2] for of_store in found.values()),
        "steps": ledger.steps,
        "steps_wrong": ledger.steps_wrong,
        "simulated": asdict(told),
    }
    asked.summary.parent.mkdir(parents=True, exist_ok=True)
    asked.summary.write_text(json.dumps(summary, indent=2) + "\n")
    print(asked.summary.read_text())
    is_well = not (told.lost or told.doubled or ledger.steps_wrong)
    is_quick = max(seconds, default=0.0) <= asked.limit
    if not is_quick:
        print(f"a failover took longer than {asked.limit:g} s", file=sys.stderr)
    return 0 if is_well and is_quick else 1


def _longest(seconds: Iterable[Sequence[float]]) -> float:
    return round(max((one for some in seconds for one in some), default=0.0), 2)


def real(times: int, ledger: Ledger, store: str) -> Sequence[float]:
    """Return the seconds of each real failover; leaders are killed and stopped in turn."""
    seconds: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eplb-failover-")))
        url = ""
        if store == REDIS:
            server = RedisServer(folder)
            stack.callback(server.kill)
            url = server.url
        house = stack.enter_context(closing(House(folder, url)))
        for number in range(times):
            is_killed = number % 2 == 0
            seconds.append(house.fail_over(is_killed=is_killed))
            word = "killed" if is_killed else "stopped"
            print(f"{store}: leader {word}: {seconds[-1]:.2f} s", flush=True)
        ledger.close_group(house.ranks)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
