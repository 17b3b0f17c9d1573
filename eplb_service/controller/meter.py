"""What is measured of one deployment over time, beside the windows that plans rest on.

Axes    L MoE layers   P slots
"""

from dataclasses import dataclass, field

import numpy as np

from eplb_service.domain.ids import CountArray, FloatArray, Incarnation, IntArray
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.load.tally import ReportTally
from eplb_service.load.window import LoadWindow

_NEVER = -2
"""In a slot that no move has touched; -1 is an empty slot."""


class Undoing:
    """Tells moves that bring a rank back what its slots' last moves took away."""

    def __init__(self) -> None:
        self._before: IntArray = np.zeros((0, 0), dtype=np.int32)

    def counted(self, old: Placement, new: Placement) -> tuple[CountArray, CountArray]:
        """[L] moves of one settled wave, and how many of them undo; remember what it took away."""
        if self._before.shape != old.phy2log.shape:
            self._before = np.full_like(old.phy2log, _NEVER)
        is_moved = (old.phy2log != new.phy2log) & (new.phy2log != EMPTY)
        is_undone = is_moved & np.isin(_held(new.phy2log, new), _held(self._before, new))
        self._before = np.where(old.phy2log != new.phy2log, old.phy2log, self._before)
        return is_moved.sum(axis=1), is_undone.sum(axis=1)


def _held(rows: IntArray, placement: Placement) -> CountArray:
    """[L, P] one number for each layer, rank and expert, of rows [L, P]; negative for no expert."""
    num_layers, _ = rows.shape
    most = placement.num_experts + placement.num_shared
    layers = np.arange(num_layers, dtype=np.int64)[:, None]
    holders = layers * placement.layout.num_ranks + placement.layout.rank_of_slot()
    return np.where(rows < 0, -1, holders * most + rows)


@dataclass(slots=True)
class Promise:
    """What the newest plan that was carried out promised, and what came of it."""

    planned: FloatArray | None = None
    """[L] imbalance; NaN where the plan saw no load."""
    realised: FloatArray | None = None
    """[L] measured in the first sufficient window afterwards."""

    def give(self, planned: FloatArray) -> None:
        """A plan was carried out whole."""
        self.planned, self.realised = planned, None

    def is_due(self, window: LoadWindow, *, min_steps: int) -> bool:
        """Whether this window is the first that tells what came of it."""
        is_open = self.planned is not None and self.realised is None
        return is_open and window.num_steps >= max(min_steps, 1)


@dataclass(slots=True)
class Links:
    """What settled waves moved, and in what time."""

    num_bytes: int = 0
    """Sent between ranks."""
    busiest_bytes: int = 0
    """Of them, what the busiest rank of each wave sent or received."""
    seconds: float = 0.0
    """From spending to MAY_COMMIT: transfers, and the words around them."""

    def moved(self, num_bytes: int, busiest_bytes: int, seconds: float) -> None:
        """Add a wave that settled."""
        self.num_bytes += num_bytes
        self.busiest_bytes += busiest_bytes
        self.seconds += seconds

    @property
    def bytes_per_s(self) -> float:
        """Through the busiest rank; 0 before a wave was measured."""
        return self.busiest_bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class Shown:
    """What gauges show already, so that it is not worked out again every second."""

    hottest: tuple[tuple[str, ...], ...] = ()
    """Labels of the experts that are shown as the hottest."""
    window: tuple[int, int, int, int] = (-1, -1, -1, -1)
    """Epoch, first and last step and number of known ranks of the newest one."""
    single: tuple[Placement, tuple[int, ...], tuple[int, int]] | None = None
    """Experts with one replica, and those of them on ranks that are away: of which placement and
    ranks, and how many."""


@dataclass(slots=True)
class Meter:
    """All that is measured of one deployment."""

    tally: ReportTally
    undoing: Undoing = field(default_factory=Undoing)
    promise: Promise = field(default_factory=Promise)
    base: Placement | None = None
    """What was served when the newest epoch was spent."""
    spent_at_s: float | None = None
    """Monotonic time, of the epoch in flight; None where none was spent here."""
    may_commit_at_s: float | None = None
    planned_at_s: float = 0.0
    """Unix time of the newest automatic planning cycle that did not fail; 0 before the first."""
    was_halted: bool = False
    told_step: tuple[Incarnation, int] = (Incarnation(0), -1)
    """The newest step that reports told the machine, and of which incarnation."""
    shown: Shown = field(default_factory=Shown)
