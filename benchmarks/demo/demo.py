"""The demo from its first process to its last."""

import sys
import tempfile
from pathlib import Path

from benchmarks.demo import screen
from benchmarks.demo.control import ControllerProcess, demo_settings
from benchmarks.demo.ledger import Ledger
from benchmarks.demo.model import BYTES_PER_EXPERT
from benchmarks.demo.plans import PlanReader
from benchmarks.demo.ranks import Ranks
from benchmarks.demo.records import AgentSetup
from benchmarks.demo.summary import LAST, Summary, complaints, summarise
from benchmarks.demo.supervisor import (
    Options,
    Segment,
    await_ready,
    choose_schedule,
    listen,
    run_segment,
)
from benchmarks.traffic import Schedule
from moe_runtime.runtime import SlotLayout

__all__ = ["run"]

_LAYOUT = SlotLayout((10,) * 8)
"""Eight ranks with two spare slots each."""
_STAGING_ROWS = 10
_MODEL = "demo"


def run(options: Options) -> int:
    """Serve without a control plane, then with one; print and write what was measured.

    Returns the exit code: 1 if something was not as it must be.
    """
    print(f"starting {_LAYOUT.num_ranks} ranks", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="eplb-demo-") as folder,
        Ranks(_LAYOUT, staging_rows=_STAGING_ROWS, device=options.device) as ranks,
    ):
        await_ready(ranks)
        schedule = choose_schedule(ranks, options)
        paired = _without_control_plane(ranks, schedule)
        print("starting Ray and the controller", flush=True)
        settings = demo_settings(known_ports=options.keep)
        log = options.summary.with_name("demo-controller.log")
        with (
            ControllerProcess(Path(folder), log, settings) as controller,
            PlanReader(controller.endpoint) as reader,
        ):
            print(f"controller at {controller.endpoint}, {controller.metrics_url}", flush=True)
            segment = _whole(schedule, controller, goes_on=options.keep)
            ledger = run_segment(ranks, segment, reader.plans)
            summary = summarise(
                run=ledger, paired=paired, plans=reader.plans(), bytes_per_expert=BYTES_PER_EXPERT
            )
            code = _conclude(summary, options)
            if options.keep:
                _stay_up(ranks, controller, reader)
    return code


def _without_control_plane(ranks: Ranks, schedule: Schedule) -> Ledger:
    """Serve the last steps of the schedule on the flat placement."""
    num_steps = min(LAST, schedule.num_steps)
    print(f"serving {num_steps} steps without a control plane, for comparison", flush=True)
    segment = Segment(schedule, schedule.num_steps - num_steps, num_steps, agent=None)
    return run_segment(ranks, segment, list)


def _whole(schedule: Schedule, controller: ControllerProcess, *, goes_on: bool) -> Segment:
    """Return the whole schedule, with an agent beside every rank."""
    print(f"serving {schedule.num_steps} steps with a control plane", flush=True)
    agent = AgentSetup(controller.endpoint, _MODEL)
    return Segment(schedule, 0, schedule.num_steps, agent, goes_on=goes_on)


def _conclude(summary: Summary, options: Options) -> int:
    summary.write(options.summary)
    print()
    print(screen.report(summary))
    print(f"written to {options.summary}", flush=True)
    wrong = complaints(summary)
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    return 1 if wrong else 0


def _stay_up(ranks: Ranks, controller: ControllerProcess, reader: PlanReader) -> None:
    """Serve on until Ctrl-C."""
    print(
        "\nThe demo stays up; its domains come again and again. Try, in another terminal:\n"
        "  make ctl ARGS=status\n"
        "  make ctl ARGS=plan\n"
        "  make ctl ARGS=history\n"
        f"or eplbctl --endpoint {controller.endpoint} where the demo runs without a namespace.\n"
        "Ctrl-C takes everything down.",
        flush=True,
    )
    nothing = Ledger(num_ranks=ranks.num_ranks, first_step=0, num_steps=0, num_layers=0)
    for _ in listen(ranks, nothing, lambda: print(screen.plans_line(reader.plans()), flush=True)):
        pass
