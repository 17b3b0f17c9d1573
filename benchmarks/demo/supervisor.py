"""Runs the demo: ranks, then the controller, then the measurements, and takes it all down."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.demo import measures, screen
from benchmarks.demo.ledger import Ledger
from benchmarks.demo.model import NUM_LAYERS
from benchmarks.demo.ranks import RankFailed, Ranks
from benchmarks.demo.records import AgentSetup, Begin, Progress, Ready, SegmentDone, Serve
from benchmarks.demo.summary import PlanLine
from benchmarks.traffic import Schedule

__all__ = [
    "Options",
    "Segment",
    "await_ready",
    "choose_schedule",
    "fitted",
    "listen",
    "run_segment",
]

_FOR_EVER = 10**9
"""Steps of a segment that goes on."""
_LEAD_S = 0.5
"""From the command to the first step, so that every rank has it in time."""
_START_S = 60.0
_SILENCE_S = 30.0
"""Without a word from any rank for so long the run is given up."""
_LOOK_S = 0.25
_SHOW_EVERY_S = 3.0
_TRIAL_STEPS = 60
_SHORTEST_INTERVAL_S = 0.045
_SERVING_S = 66.0
"""Time for all domains, of the two minutes that the demo may take."""
_LEAST_SLACK = 1.6
"""Shortest interval, in median steps: some steps bring more tokens, and outputs are checked."""
_FEWEST_DOMAINS = 2
"""With fewer nothing would change that is worth balancing again."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    domains: tuple[str, ...]
    steps_per_domain: int
    interval_s: float
    """From the start of one step to the next; 0: as this machine allows."""
    summary: Path
    keep: bool
    device: str
    """cpu, or npu: rank 3 on npu:3."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps that are measured as one."""

    schedule: Schedule
    first_step: int
    num_steps: int
    agent: AgentSetup | None
    goes_on: bool = False
    """Whether ranks serve on after the last measured step."""
    is_shown: bool = True
    """Whether it is shown how it goes."""


def await_ready(ranks: Ranks) -> None:
    """Wait until every rank waits for the next command. Raises RankFailed."""
    ready: set[int] = set()
    give_up_at = time.monotonic() + _START_S
    while len(ready) < ranks.num_ranks:
        if time.monotonic() > give_up_at:
            raise RankFailed(f"only ranks {sorted(ready)} were ready within {_START_S:.0f} s")
        ready |= {word.rank for word in ranks.words(timeout_s=1.0) if isinstance(word, Ready)}


def choose_schedule(ranks: Ranks, options: Options) -> Schedule:
    """Return the schedule asked for, or else one that this machine can keep."""
    asked = Schedule(options.domains, options.steps_per_domain, options.interval_s)
    if options.interval_s:
        return asked
    segment = Segment(asked, 0, _TRIAL_STEPS, agent=None, is_shown=False)
    trial = run_segment(ranks, segment, list)
    step_s = float(np.median(measures.step_seconds(trial.seconds_NT)))
    schedule = fitted(asked, step_s=step_s)
    print(
        f"steps take {1e3 * step_s:.0f} ms here, so one begins every "
        f"{1e3 * schedule.interval_s:.0f} ms; domains: {', '.join(schedule.domains)}"
    )
    return schedule


def fitted(schedule: Schedule, *, step_s: float) -> Schedule:
    """Return the schedule at an interval that fits, with as many domains as there is time for.

    A step may take half of its interval, so that there is time for the check of its outputs.
    Where that takes too long with the fewest domains, less of the interval is left free; where
    even that does not fit, the run takes longer, as steps that cannot keep their schedule would
    be late without end.

    >>> fitted(Schedule(("c4", "book", "arxiv"), 400, 0.0), step_s=0.04).domains
    ('book', 'arxiv')
    """
    longest_s = _SERVING_S / (_FEWEST_DOMAINS * schedule.steps_per_domain)
    wanted_s = min(2 * step_s, max(longest_s, _LEAST_SLACK * step_s))
    interval_s = round(max(_SHORTEST_INTERVAL_S, wanted_s), 4)
    fitting = int(_SERVING_S / (interval_s * schedule.steps_per_domain))
    num_domains = max(_FEWEST_DOMAINS, fitting)
    return replace(schedule, domains=schedule.domains[-num_domains:], interval_s=interval_s)


def run_segment(ranks: Ranks, segment: Segment, plans: Callable[[], list[PlanLine]]) -> Ledger:
    """Have the ranks serve a segment, show how it goes, and return what they measured.

    plans()    what the controller has planned so far

    Raises RankFailed.
    """
    num_steps = _FOR_EVER if segment.goes_on else segment.num_steps
    ranks.tell(Serve(segment.schedule, segment.first_step, num_steps, segment.agent))
    await_ready(ranks)
    ranks.tell(Begin(time.monotonic() + _LEAD_S))
    if segment.is_shown:
        print(screen.header(), flush=True)
    ledger = Ledger(
        num_ranks=ranks.num_ranks,
        first_step=segment.first_step,
        num_steps=segment.num_steps,
        num_layers=NUM_LAYERS,
    )

    shown = ""

    def show() -> None:
        nonlocal shown
        line = screen.line(ledger, segment.schedule, plans()) if segment.is_shown else ""
        if line != shown:  # steps are told in lots, which come more seldom where they are long
            print(line, flush=True)
        shown = line

    for done in listen(ranks, ledger, show):
        if done == ranks.num_ranks or (segment.goes_on and ledger.is_complete):
            break
    return ledger


def listen(ranks: Ranks, ledger: Ledger, show: Callable[[], None]) -> Iterator[int]:
    """Write down what ranks say, and yield again and again how many have done all their steps.

    show()    called every few seconds

    Raises RankFailed for a rank that cannot go on, or when all are silent for long.
    """
    done: set[int] = set()
    heard_at = shown_at = time.monotonic()
    while True:
        for word in ranks.words(timeout_s=_LOOK_S):
            heard_at = time.monotonic()
            match word:
                case Progress():
                    ledger.add(word)
                case SegmentDone(rank):
                    done.add(rank)
                case Ready():
                    pass
        now = time.monotonic()
        if now > heard_at + _SILENCE_S:
            raise RankFailed(f"no rank said a word for {_SILENCE_S:.0f} s")
        if now > shown_at + _SHOW_EVERY_S:
            shown_at = now
            show()
        yield len(done)
