"""What reports add up to over time: counts that only grow, whatever the windows forget."""

from dataclasses import dataclass

from eplb_service.domain.metric_names import (
    EXCLUDED_STEPS,
    EXCLUDED_TOKENS,
    OVERFLOW_TOKENS,
    REPORTS,
    REPORTS_LOST,
    STEP_SECONDS,
    STEPS,
    TOKENS,
    Metric,
)
from eplb_service.domain.report import LoadReport, Phase, StepCounts

SERVING, MIGRATION = "serving", "migration"
EXCLUDED_KINDS = ("dummy", "warmup", "profile")

Labels = tuple[str, ...]

_ZERO: dict[tuple[Metric, Labels], float] = {
    **{(metric, ()): 0 for metric in (REPORTS, REPORTS_LOST, TOKENS, OVERFLOW_TOKENS)},
    **{
        (metric, (during,)): 0
        for metric in (STEPS, STEP_SECONDS)
        for during in (SERVING, MIGRATION)
    },
    **{(EXCLUDED_STEPS, (kind,)): 0 for kind in EXCLUDED_KINDS},
    (EXCLUDED_TOKENS, ("padding",)): 0,
}


@dataclass(frozen=True, slots=True)
class Paced:
    """Real steps of all ranks, and the seconds that they took."""

    steps: int = 0
    seconds: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds of one step; 0 before the first."""
        return self.seconds / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest report of a rank, or of a rank and phase."""

    reset: int
    step: int
    steps: StepCounts


_NOTHING = StepCounts(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)


class ReportTally:
    """Adds up what each accepted report says beyond the one before it.

    Steps, padding and overflow are the same in the reports of both phases of one cut, and
    count once; tokens are each phase's own.
    """

    def __init__(self, report_steps: int) -> None:
        self._report_steps = report_steps
        self._by_rank: dict[int, _Seen] = {}
        self._by_phase: dict[tuple[int, Phase], _Seen] = {}
        self._counts: dict[tuple[Metric, Labels], float] = dict(_ZERO)
        self._paced = {SERVING: Paced(), MIGRATION: Paced()}

    def forget(self) -> None:
        """A new group counts anew; what was added up stays."""
        self._by_rank.clear()
        self._by_phase.clear()

    def last_step(self, rank: int) -> int | None:
        """The newest step that the rank reported; None before its first report."""
        seen = self._by_rank.get(rank)
        return seen.step if seen else None

    def add(self, report: LoadReport, rank: int, *, is_migrating: bool) -> None:
        """Count one accepted report; one that repeats what is counted already adds nothing."""
        key = (rank, report.phase)
        of_phase, of_rank = self._by_phase.get(key), self._by_rank.get(rank)
        now = _Seen(report.reset, report.step, report.steps)
        if of_phase is None or _is_newer(now, of_phase):
            self._count(REPORTS, (), 1)
            self._count(REPORTS_LOST, (), self._num_lost(of_phase, now))
            self._count(TOKENS, (), now.steps.tokens - _before(of_phase, now).tokens)
            self._by_phase[key] = now
        if of_rank is None or _is_newer(now, of_rank):
            self._count_steps(now.steps, _before(of_rank, now), is_migrating=is_migrating)
            self._by_rank[rank] = now

    def lost_s(self, num_ranks: int) -> float:
        """Seconds that serving has lost to migrations so far, by how much longer steps took then.

        0 where steps of both kinds have not been counted yet.
        """
        serving, moving = self._paced[SERVING], self._paced[MIGRATION]
        if not serving.steps or not moving.steps:
            return 0.0
        return max(0.0, (moving.step_s - serving.step_s) * moving.steps / num_ranks)

    @property
    def step_s(self) -> float:
        """Seconds of a step while nothing moves, on the mean so far; 0 before the first."""
        return self._paced[SERVING].step_s

    def take(self) -> dict[tuple[Metric, Labels], float]:
        """Return what was counted since it was taken last, by metric and its further labels."""
        taken, self._counts = self._counts, {}
        return taken

    def _count_steps(self, now: StepCounts, before: StepCounts, *, is_migrating: bool) -> None:
        kind = MIGRATION if is_migrating else SERVING
        during, paced = (kind,), self._paced[kind]
        self._paced[kind] = Paced(
            paced.steps + max(0, now.real - before.real),
            paced.seconds + max(0.0, now.step_seconds - before.step_seconds),
        )
        self._count(STEPS, during, now.real - before.real)
        self._count(STEP_SECONDS, during, now.step_seconds - before.step_seconds)
        self._count(EXCLUDED_STEPS, ("dummy",), now.dummy - before.dummy)
        self._count(EXCLUDED_STEPS, ("warmup",), now.warmup - before.warmup)
        self._count(EXCLUDED_STEPS, ("profile",), now.profile - before.profile)
        self._count(EXCLUDED_TOKENS, ("padding",), now.padding_rows - before.padding_rows)
        self._count(OVERFLOW_TOKENS, (), now.overflow_tokens - before.overflow_tokens)

    def _count(self, metric: Metric, labels: Labels, amount: float) -> None:
        if amount > 0:
            key = (metric, labels)
            self._counts[key] = self._counts.get(key, 0) + amount

    def _num_lost(self, before: _Seen | None, now: _Seen) -> int:
        """Whole reporting intervals between two reports, less the one that the newer ends."""
        if before is None:
            return 0
        every = self._report_steps
        return max(0, now.step // every - before.step // every - 1)


def _is_newer(now: _Seen, before: _Seen) -> bool:
    return (now.reset, now.step) > (before.reset, before.step)


def _before(before: _Seen | None, now: _Seen) -> StepCounts:
    """What is counted already of the newer report's counters; they began anew at a reset."""
    return before.steps if before and before.reset == now.reset else _NOTHING
