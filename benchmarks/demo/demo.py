"""The demo from its first process to its last."""

import sys

from benchmarks.demo import screen
from benchmarks.demo.ledger import Ledger
from benchmarks.demo.model import BYTES_PER_EXPERT
from benchmarks.demo.ranks import Ranks
from benchmarks.demo.summary import LAST, PlanLine, complaints, summarise
from benchmarks.demo.supervisor import Options, Segment, await_ready, run_segment
from moe_runtime.runtime import SlotLayout

__all__ = ["run"]

_LAYOUT = SlotLayout((10,) * 8)
"""Eight ranks with two spare slots each."""
_STAGING_ROWS = 10


def run(options: Options) -> int:
    """Serve without a control plane, then with one; print and write what was measured."""
    with Ranks(_LAYOUT, staging_rows=_STAGING_ROWS) as ranks:
        await_ready(ranks)
        paired = _without_control_plane(ranks, options)
        ledger = _with_control_plane(ranks, options)
        summary = summarise(
            run=ledger, paired=paired, plans=_no_plans(), bytes_per_expert=BYTES_PER_EXPERT
        )
    summary.write(options.summary)
    print(screen.report(summary))
    wrong = complaints(summary)
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    return 1 if wrong else 0


def _without_control_plane(ranks: Ranks, options: Options) -> Ledger:
    """Serve the last steps of the schedule on the flat placement."""
    schedule = options.schedule
    num_steps = min(LAST, schedule.num_steps)
    print(f"serving {num_steps} steps without a control plane, for comparison")
    print(screen.header(), flush=True)
    segment = Segment(schedule, schedule.num_steps - num_steps, num_steps, agent=None)
    return run_segment(ranks, segment, _no_plans)


def _with_control_plane(ranks: Ranks, options: Options) -> Ledger:
    schedule = options.schedule
    return run_segment(ranks, Segment(schedule, 0, schedule.num_steps, agent=None), _no_plans)


def _no_plans() -> list[PlanLine]:
    return []
