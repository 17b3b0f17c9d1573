"""The load windows of one deployment: takes reports, refuses bad ones, encloses common spans."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from eplb_service.domain.errors import InvalidReport
from eplb_service.domain.heat import BySource
from eplb_service.domain.ids import Epoch
from eplb_service.domain.placement import Placement
from eplb_service.domain.report import NO_SENT, LoadReport, Phase
from eplb_service.load.checks import check_content, check_order, check_origin, check_rank
from eplb_service.load.conservation import (
    encloses,
    is_complete,
    lost_in_layers,
)
from eplb_service.load.cuts import Cuts
from eplb_service.load.group import Group, WindowTerms
from eplb_service.load.sources import sent_between
from eplb_service.load.told import SentCut, lost_to_experts, sent_cut, with_columns, without_sent
from eplb_service.load.window import LoadWindow, Span, empty_window, enclose

Key = tuple[int, Phase]
MOST_TOLD = 3
"""Cuts with sent counts that are kept, the largest that a group reports."""


class LoadWindows:
    """Everything counted under the epoch that one deployment serves.

    Reports are cumulative, so only those at interval boundaries are kept, and a lost
    one costs nothing. Memory is bounded by the window's length.
    """

    def __init__(self, group: Group, terms: WindowTerms) -> None:
        self._group = group
        self._terms = terms
        self._last: dict[Key, LoadReport] = {}
        self._seen: dict[tuple[Phase | None, int], LoadWindow] = {}
        """Windows enclosed since the newest cut: who looks twice is told the same."""
        self._cuts = Cuts(terms)
        self._broken: list[tuple[int, int]] = []
        self._columns = NO_SENT
        """The newest sent counts: nearly all reports tell of the same experts."""
        self._told: deque[SentCut] = deque(maxlen=MOST_TOLD)
        """The newest complete cuts with sent counts, which come seldom."""

    @property
    def group(self) -> Group:
        """The ranks and the placement that reports are held against."""
        return self._group

    def begin(self, epoch: Epoch, placement: Placement) -> None:
        """Start over under a new epoch: counts made under the old one are not mixed in."""
        self._group = Group(epoch, placement, self._group.profiles, self._group.top_k)
        self._last.clear()
        self._seen.clear()
        self._cuts = Cuts(self._terms)
        self._broken.clear()
        self._told.clear()
        self._columns = NO_SENT

    def add(self, report: LoadReport, rank: int) -> None:
        """Take one rank's report.

        Raises InvalidReport, with what was known before kept, when the report cannot be
        believed, or when it completes a cut at which tokens sent and received differ:
        then no window encloses that interval. The closing totals of an epoch that is
        over are accepted, so that they need not be repeated, and play no further part.
        """
        check_rank(rank, self._group)
        if report.is_closing and report.epoch < self._group.epoch:
            return
        check_origin(report, rank, self._group)
        report = with_columns(report, self._columns)
        check_content(report, rank, self._group, self._columns)
        if report.sent.tokens.size:
            self._columns = report.sent
        key = (rank, report.phase)
        check_order(report, self._last.get(key), rank, self._terms)
        if key not in self._last:
            self._seen.clear()
        self._last[key] = without_sent(report)
        if report.step % self._terms.interval_steps == 0:
            self._seen.clear()
            self._cuts.add(key, report)
            oldest = min(self._cuts.oldest, *(told.step for told in self._told), report.step)
            self._broken = [span for span in self._broken if span[1] > oldest]
            self._check_conservation(report.step)

    def window(self, phase: Phase | None = None, *, since: int = 0) -> LoadWindow:
        """Enclose the span that most ranks share, then the longest, then the newest.

        since    no earlier step is enclosed

        With a phase, only that phase's counts; with None, all phases together. Where every
        rank counts a part of every slot's tokens, nothing is enclosed while one is missing.
        """
        found = self._seen.get((phase, since))
        if found is None:
            found = self._seen[phase, since] = self._enclosed(phase, since)
        return found

    def _enclosed(self, phase: Phase | None, since: int) -> LoadWindow:
        phases = (phase,) if phase else tuple(Phase)
        span = max(
            (span for span in self._spans(phases) if span.first_step >= since),
            key=lambda s: (len(s.ranks), s.last_step - s.first_step, s.last_step),
            default=None,
        )
        if span is None or not span.ranks:
            return empty_window(self._group, phase)
        if self._group.counts_all_slots(0) and len(span.ranks) < self._group.num_ranks:
            return empty_window(self._group, phase, heard=span.ranks)
        return enclose(self._group, span, self._cuts.by_step, phases)

    def by_source(self, phase: Phase | None = None) -> BySource | None:
        """Who sent what, over the longest sound span of kept sent counts; None without one."""
        phases = (phase,) if phase else tuple(Phase)
        for first in list(self._told)[:-1]:
            if self._is_sound(first.step, self._told[-1].step):
                found = sent_between(first, self._told[-1], self._group, phases)
                if found is not None:
                    return found
        return None

    def _is_sound(self, first: int, last: int) -> bool:
        return not any(first < end and last > start for start, end in self._broken)

    def last_step(self, rank: int) -> int:
        """Newest step that the rank reported under this epoch, -1 where it has not."""
        return max((r.step for (of, _), r in self._last.items() if of == rank), default=-1)

    def _spans(self, phases: tuple[Phase, ...]) -> Iterator[Span]:
        longest = self._terms.num_intervals * self._terms.interval_steps
        steps = sorted(self._cuts.by_step)
        needed = tuple(_needed(self._group.num_ranks, self._last, phases))
        marks = {step: _marks(self._cuts.by_step[step], needed) for step in steps}
        for last in steps:
            for first in steps:
                if 0 < last - first <= longest and self._is_sound(first, last):
                    ranks = sorted(rank for rank, _ in marks[first] & marks[last])
                    yield Span(first, last, tuple(ranks))

    def _check_conservation(self, step: int) -> None:
        """Compare sent and received since the complete cut before, once a cut is complete."""
        seen, cuts = tuple(self._last), self._cuts.by_step
        cut = cuts.get(step, {})
        if not is_complete(cut, self._group, seen):
            return
        telling = sent_cut(step, cut, self._group)
        told = self._told[-1] if self._told else None
        if telling is not None:
            self._told.append(telling)
            self._cuts.was_told(step)
        earlier = [s for s in cuts if s < step and is_complete(cuts[s], self._group, seen)]
        before = max(earlier, default=None)
        if before is not None and encloses(cuts[before], cut, seen):
            self._require(lost_in_layers(cuts[before], cut, self._group), before, step)
        if told is not None and telling is not None and encloses(told.cut, cut, seen):
            self._require(lost_to_experts(told, telling, self._group), told.step, step)

    def _require(self, lost: tuple[str, ...], before: int, step: int) -> None:
        """Break the interval and refuse the report that completed it, where tokens were lost."""
        if lost:
            self._broken.append((before, step))
            raise InvalidReport(
                f"between steps {before} and {step}: {'; '.join(lost[:5])}"
                f"{f'; and {len(lost) - 5} more' if len(lost) > 5 else ''}; "
                "no window encloses these steps",
                reason="conservation",
            )


def _needed(
    num_ranks: int, told: Mapping[Key, LoadReport], phases: tuple[Phase, ...]
) -> Iterator[tuple[int, tuple[Key, ...]]]:
    """Which reports of a rank enclose its load: a phase never reported holds nothing."""
    for rank in range(num_ranks):
        seen = tuple(key for key in ((rank, phase) for phase in Phase) if key in told)
        needed = tuple(key for key in seen if key[1] in phases) or seen
        if needed:
            yield rank, needed


def _marks(
    cut: Mapping[Key, LoadReport], needed: Iterable[tuple[int, tuple[Key, ...]]]
) -> frozenset[tuple[int, tuple[int, ...]]]:
    """Ranks that have all needed reports in a cut, each with the starts that they count from."""
    return frozenset(
        (rank, tuple(cut[key].reset for key in keys))
        for rank, keys in needed
        if all(key in cut for key in keys)
    )
