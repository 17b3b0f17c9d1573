"""make fuzz: many seeds of the simulator, and every mutation; build/fuzz-summary.json says how.

Ends with 1 if any seed breaks an invariant or any mutation goes unnoticed; the transcript of
the first seeds that failed is printed.
"""

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from time import perf_counter

from eplb_service.sim.chaos import simulate
from eplb_service.sim.story import Violation
from tests.protocol.hunting import Caught, hunt
from tests.protocol.mutations import MUTATIONS

SUMMARY = Path("build/fuzz-summary.json")
NUM_SEEDS = 10_000
CHUNK = 50
NUM_TOLD = 3
"""Failing seeds whose transcripts are printed."""

Failures = list[tuple[int, str]]
"""Seeds with their transcripts."""


def run_seeds(first: int, until: int) -> Failures:
    """Run a range of seeds; returns those that broke an invariant."""
    failed: Failures = []
    for seed in range(first, until):
        try:
            simulate(Random(seed))
        except Violation as broken:
            failed.append((seed, str(broken)))
    return failed


def hunt_number(number: int) -> Caught | None:
    """Hunt one mutation, in a process that may not know it by reference."""
    return hunt(MUTATIONS[number])


def chunks(first: int, num_seeds: int) -> Iterator[tuple[int, int]]:
    """Cut the seeds into pieces of work."""
    until = first + num_seeds
    for start in range(first, until, CHUNK):
        yield start, min(start + CHUNK, until)


def main() -> int:
    """Run everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="how many (default 10,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    asked = parser.parse_args()
    if asked.seeds < 1:
        parser.error(f"--seeds is {asked.seeds}; expected 1 or more")
    began_s = perf_counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        hunts = [pool.submit(hunt_number, number) for number in range(len(MUTATIONS))]
        runs = [pool.submit(run_seeds, *chunk) for chunk in chunks(asked.first, asked.seeds)]
        failed = sorted(failure for run in as_completed(runs) for failure in run.result())
        caught = tell_hunts(hunts)
    for seed, transcript in failed[:NUM_TOLD]:
        print(f"== seed {seed}\n{transcript}\n")
    summary = {
        "seeds": asked.seeds,
        "first_seed": asked.first,
        "violations": len(failed),
        "failed_seeds": [seed for seed, _ in failed],
        "mutations": len(MUTATIONS),
        "mutations_caught": sum(found is not None for found in caught.values()),
        "caught": {
            name: {"seed": found.seed, "by": found.by} if found else None
            for name, found in caught.items()
        },
        "seconds": round(perf_counter() - began_s, 1),
    }
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text(json.dumps(summary, indent=2) + "\n")
    print(
        f"{asked.seeds} seeds: {len(failed)} violations; {summary['mutations_caught']} of "
        f"{len(MUTATIONS)} mutations caught; {summary['seconds']} s, see {SUMMARY}"
    )
    return 1 if failed or None in caught.values() else 0


def tell_hunts(hunts: list[Future[Caught | None]]) -> dict[str, Caught | None]:
    """Print what caught each mutation."""
    caught: dict[str, Caught | None] = {}
    for mutate, future in zip(MUTATIONS, hunts, strict=True):
        found = caught[mutate.__name__] = future.result()
        print(f"{mutate.__name__:42} {f'seed {found.seed}: {found.by}' if found else 'MISSED'}")
    return caught


if __name__ == "__main__":
    raise SystemExit(main())
