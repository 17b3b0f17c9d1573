"""make soak: real processes under real faults; build/soak-summary.json says how it went.

Four ranks with the verified engine, a controller on a local Ray, a SQLite store on a disk of its
own. Each fault strikes in the middle of a wave's staging. Ends with 1 if a step was wrong or
missed, or a fault of the list did not strike.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from time import monotonic

from tests.soak.faults import FAULTS, Fault
from tests.soak.house import House
from tests.soak.ledger import Ledger
from tests.system.world import HELD_RANK

SUMMARY = Path("build/soak-summary.json")
NUM_STEPS = 150
"""Steps served while something is broken, and as many before."""


def main() -> int:
    """Run until the time is over and every fault has struck; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of faults (default 0)")
    parser.add_argument("--summary", type=Path, default=SUMMARY, help="default %(default)s")
    asked = parser.parse_args()
    ledger = Ledger()
    began_s = monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="eplb-soak-") as folder,
        closing(House(Path(folder), ledger)) as house,
    ):
        for number, fault in enumerate(order(house, Random(asked.seed))):
            ledger.minutes = (monotonic() - began_s) / 60
            if number >= len(FAULTS) and ledger.minutes >= asked.minutes:
                break
            suffer(house, fault)
            recovery_s = ledger.recovery_s[fault.name][-1]
            print(f"{ledger.minutes:6.1f} min  {fault.name}: calm after {recovery_s} s", flush=True)
    ledger.write(asked.summary, seed=asked.seed)
    print(asked.summary.read_text())
    complaints = ledger.complaints([fault.name for fault in FAULTS])
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def order(house: House, rng: Random) -> Iterator[Fault]:
    """All faults in an order drawn by chance, again and again."""
    while True:
        for make in rng.sample(FAULTS, len(FAULTS)):
            yield make(house)


def suffer(house: House, fault: Fault) -> None:
    """Let a fault strike a wave, serve through it, mend it, and see a fresh plan settle."""
    world = house.world
    world.hold_wave()
    paired = world.ranks.serve(NUM_STEPS)
    struck_s = monotonic()
    fault.strike()
    if not fault.stops_steps:
        world.ranks.hold_rounds(HELD_RANK, is_on=False)
        during = world.ranks.serve(NUM_STEPS)
        house.ledger.compare(fault.name, world.ranks.steps(*during), world.ranks.steps(*paired))
    began_s = struck_s if fault.is_a_blow else monotonic()
    fault.mend()
    world.ranks.hold_rounds(HELD_RANK, is_on=False)
    world.calm_down()
    phase = world.operator.status().operation.running.phase
    house.ledger.recovered(fault.name, monotonic() - began_s, phase)
    world.settle_another()
    house.ledger.plan_ended("done")


if __name__ == "__main__":
    sys.exit(main())
