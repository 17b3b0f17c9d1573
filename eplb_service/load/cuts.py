"""The reports that windows are made of: those cut at interval boundaries, a few of every rank."""

from eplb_service.domain.report import LoadReport, Phase
from eplb_service.load.group import WindowTerms
from eplb_service.load.told import without_sent

SPARE_CUTS = 2
"""Cuts kept beyond a full window, so that a window stays full while the newest cut fills."""

MOST_UNTOLD = 2
"""Newest cuts of a rank that keep their sent counts, until all ranks have told them."""

Key = tuple[int, Phase]


class Cuts:
    """Reports by step, and by rank and phase; each rank pushes out only its own old ones.

    A rank whose steps ran away thus costs the others nothing. One that has fallen silent
    is forgotten once every rank could have filled the memory anew without it.
    """

    def __init__(self, terms: WindowTerms) -> None:
        self.by_step: dict[int, dict[Key, LoadReport]] = {}
        self._most = terms.num_intervals + 1 + SPARE_CUTS
        self._num_taken = 0
        self._taken_at: dict[Key, int] = {}

    @property
    def oldest(self) -> int:
        """The first step that is kept, 0 where none is."""
        return min(self.by_step, default=0)

    def add(self, key: Key, report: LoadReport) -> None:
        """Keep a report, and forget what is too old."""
        self.by_step.setdefault(report.step, {})[key] = report
        self._num_taken += 1
        self._taken_at[key] = self._num_taken
        steps = sorted(step for step, cut in self.by_step.items() if key in cut)
        telling = [step for step in steps if self.by_step[step][key].sent.tokens.size]
        for step in telling[:-MOST_UNTOLD]:
            self.by_step[step][key] = without_sent(self.by_step[step][key])
        for step in steps[: -self._most]:
            self._forget(step, key)
        patience = self._most * len(self._taken_at)
        for silent in [k for k, at in self._taken_at.items() if self._num_taken - at > patience]:
            del self._taken_at[silent]
            for step in [step for step, cut in self.by_step.items() if silent in cut]:
                self._forget(step, silent)

    def was_told(self, step: int) -> None:
        """Forget what was sent up to a cut: it is kept elsewhere."""
        for cut in self.by_step.values():
            for key, report in cut.items():
                if report.step <= step:
                    cut[key] = without_sent(report)

    def _forget(self, step: int, key: Key) -> None:
        del self.by_step[step][key]
        if not self.by_step[step]:
            del self.by_step[step]
