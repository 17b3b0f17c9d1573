"""The load windows of one deployment: takes reports, refuses bad ones, encloses common spans."""

from collections.abc import Iterator

from eplb_service.domain.errors import InvalidReport
from eplb_service.domain.ids import Epoch
from eplb_service.domain.placement import Placement
from eplb_service.domain.report import LoadReport, Phase
from eplb_service.load.checks import check_content, check_order, check_origin
from eplb_service.load.conservation import is_complete, is_same_counting, mismatches
from eplb_service.load.group import Group, WindowTerms
from eplb_service.load.window import LoadWindow, Span, empty_window, enclose

SPARE_CUTS = 2
"""Cuts kept beyond a full window, so that a window stays full while the newest cut fills."""

Key = tuple[int, Phase]


class LoadWindows:
    """Everything counted under the epoch that one deployment serves.

    Reports are cumulative, so only those at interval boundaries are kept, and a lost
    one costs nothing. Memory is bounded by the window's length.
    """

    def __init__(self, group: Group, terms: WindowTerms) -> None:
        self._group = group
        self._terms = terms
        self._last: dict[Key, LoadReport] = {}
        self._cuts: dict[int, dict[Key, LoadReport]] = {}
        self._broken: list[tuple[int, int]] = []

    @property
    def group(self) -> Group:
        """The ranks and the placement that reports are held against."""
        return self._group

    def begin(self, epoch: Epoch, placement: Placement) -> None:
        """Start over under a new epoch: counts made under the old one are not mixed in."""
        self._group = Group(epoch, placement, self._group.profiles, self._group.top_k)
        self._last.clear()
        self._cuts.clear()
        self._broken.clear()

    def add(self, report: LoadReport, rank: int) -> None:
        """Take one rank's report.

        Raises InvalidReport, with what was known before kept, when the report cannot be
        believed, or when it completes a cut at which tokens sent and received differ:
        then no window encloses that interval. The closing totals of an epoch that is
        over are accepted, so that they need not be repeated, and play no further part.
        """
        if report.is_closing and report.epoch < self._group.epoch:
            return
        check_origin(report, rank, self._group)
        check_content(report, rank, self._group)
        key = (rank, report.phase)
        check_order(report, self._last.get(key), rank, self._terms)
        self._last[key] = report
        if report.step % self._terms.interval_steps == 0:
            self._cuts.setdefault(report.step, {})[key] = report
            self._forget_old_cuts()
            self._check_conservation(report.step)

    def window(self, phase: Phase | None = None) -> LoadWindow:
        """Enclose the span that most ranks share, then the longest, then the newest.

        With a phase, only that phase's counts; with None, all phases together.
        """
        phases = (phase,) if phase else tuple(Phase)
        span = max(
            self._spans(phases),
            key=lambda s: (len(s.ranks), s.last_step - s.first_step, s.last_step),
            default=None,
        )
        if span is None or not span.ranks:
            return empty_window(self._group, phase)
        return enclose(self._group, span, self._cuts, phases)

    def last_step(self, rank: int) -> int:
        """Newest step that the rank reported under this epoch, -1 where it has not."""
        return max((r.step for (of, _), r in self._last.items() if of == rank), default=-1)

    def _forget_old_cuts(self) -> None:
        while len(self._cuts) > self._terms.num_intervals + 1 + SPARE_CUTS:
            del self._cuts[min(self._cuts)]
        oldest = min(self._cuts)
        self._broken = [(first, last) for first, last in self._broken if last > oldest]

    def _spans(self, phases: tuple[Phase, ...]) -> Iterator[Span]:
        longest = self._terms.num_intervals * self._terms.interval_steps
        steps = sorted(self._cuts)
        for last in steps:
            for first in steps:
                is_sound = not any(first < end and last > start for start, end in self._broken)
                if 0 < last - first <= longest and is_sound:
                    yield Span(first, last, tuple(self._ranks_with(first, last, phases)))

    def _ranks_with(self, first: int, last: int, phases: tuple[Phase, ...]) -> Iterator[int]:
        """Ranks whose reports enclose the span: a phase never reported holds nothing."""
        for rank in range(self._group.num_ranks):
            seen = [key for key in ((rank, phase) for phase in Phase) if key in self._last]
            needed = [key for key in seen if key[1] in phases] or seen
            if needed and all(self._is_enclosed(key, first, last) for key in needed):
                yield rank

    def _is_enclosed(self, key: Key, first: int, last: int) -> bool:
        before, after = self._cuts[first].get(key), self._cuts[last].get(key)
        return before is not None and after is not None and is_same_counting(before, after)

    def _check_conservation(self, step: int) -> None:
        """Compare sent and received since the complete cut before, once a cut is complete."""
        seen = tuple(self._last)
        if len(self._cuts.get(step, ())) < len(seen):
            return
        complete = [s for s in sorted(self._cuts) if is_complete(self._cuts[s], self._group, seen)]
        if step not in complete or complete[0] == step:
            return
        before = complete[complete.index(step) - 1]
        if not all(self._is_enclosed(key, before, step) for key in seen):
            return
        found = mismatches(self._cuts[before], self._cuts[step], self._group)
        if found:
            self._broken.append((before, step))
            raise InvalidReport(
                f"between steps {before} and {step}: {'; '.join(found[:5])}"
                f"{f'; and {len(found) - 5} more' if len(found) > 5 else ''}; "
                "no window encloses these steps",
                reason="conservation",
            )
