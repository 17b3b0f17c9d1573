"""Cuts: the engine's load totals, copied on the step's thread at the same steps on all ranks.

Counters are cumulative, so a newer cut makes an older one needless: what finds no
room pushes the oldest out, and nothing is lost but detail in time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import ShareName
from worker_agent.ports.engine import Counters, EnginePort


@dataclass(frozen=True, slots=True)
class Cadence:
    """When reports are cut; the Welcome tells."""

    report_every_steps: int
    sent_every_reports: int
    """Every how many reports the sent counts come along."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The totals before one step, and what was served until then."""

    step: int
    served: ShareName
    placement: Placement
    start: "Start"
    counters: Counters
    step_seconds: float
    has_sent: bool
    is_closing: bool


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Where the counting of one epoch began: a slot's earlier tokens were another expert's."""

    number: int
    """Switches since the attachment."""
    counters: Counters
    step_seconds: float


class Cutter:
    """Meets CutsPort for the step side; the agent's side takes the cuts from it.

    Closing totals have a queue of their own, so that no flood of ordinary cuts can push
    them out; it keeps those of the last few epochs.
    """

    def __init__(
        self,
        engine: EnginePort,
        cadence: Cadence,
        ring: Callable[[], None],
        *,
        max_cuts: int = 4,
        max_closings: int = 8,
    ) -> None:
        self.cadence = cadence
        """Replaced whole, by the agent's side."""
        self._engine = engine
        self._ring = ring
        self._cuts: deque[Cut] = deque(maxlen=max_cuts)
        self._closings: deque[Cut] = deque(maxlen=max_closings)
        self._step_seconds = 0.0
        self._start = Start(0, engine.counters(), 0.0)

    def add_step_seconds(self, seconds: float) -> None:
        """Count the time of a real step."""
        self._step_seconds += seconds

    def at_step(self, step: int, served: ShareName, placement: Placement) -> None:
        """Take a cut before `step`, if one is due there."""
        cadence = self.cadence
        if step % cadence.report_every_steps == 0:
            number = step // cadence.report_every_steps
            has_sent = number % cadence.sent_every_reports == 0
            cut = self._cut(step, served, placement, has_sent=has_sent, is_closing=False)
            self._cuts.append(cut)
            self._ring()

    def closing(self, step: int, served: ShareName, placement: Placement) -> None:
        """Take the closing totals of `served`."""
        cut = self._cut(step, served, placement, has_sent=True, is_closing=True)
        self._closings.append(cut)
        self._start = Start(self._start.number + 1, cut.counters, cut.step_seconds)
        self._ring()

    def take_cut(self) -> Cut | None:
        """Return the oldest ordinary cut that is kept, or None."""
        return self._take(self._cuts)

    def take_closing(self) -> Cut | None:
        """Return the oldest closing cut that was not taken, or None."""
        return self._take(self._closings)

    @staticmethod
    def _take(cuts: deque[Cut]) -> Cut | None:
        try:
            return cuts.popleft()
        except IndexError:
            return None

    def _cut(
        self,
        step: int,
        served: ShareName,
        placement: Placement,
        *,
        has_sent: bool,
        is_closing: bool,
    ) -> Cut:
        return Cut(
            step=step,
            served=served,
            placement=placement,
            start=self._start,
            counters=self._engine.counters(),
            step_seconds=self._step_seconds,
            has_sent=has_sent,
            is_closing=is_closing,
        )
