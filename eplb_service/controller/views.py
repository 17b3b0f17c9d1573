"""What operators are told: frozen answers to read verbs, for server, command line and page.

NaN stands for "no data" in every figure here; the command line prints it as such.
"""

from dataclasses import dataclass

from eplb_service.controller.records import Freeze, HistoryEntry
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.plan import Plan, Verdict
from eplb_service.protocol.messages import HaltStatus


@dataclass(frozen=True, slots=True)
class ImbalanceView:
    """Measured imbalance of the newest window."""

    mean: float
    """Over layers with data."""
    worst: float
    worst_layer: int
    """-1 without data."""


@dataclass(frozen=True, slots=True)
class SharesView:
    """The shares that ranks use, and what they were to bring."""

    num_revisions: int
    """Revisions that came into use since the controller started."""
    before: float
    """Imbalance predicted for that load under the tables before; NaN while shares are even."""
    predicted: float
    """Imbalance that the revision in use promised; NaN while shares are even."""
    measured: float
    """Imbalance measured since it is in use; NaN until enough was counted."""
    even_because: str = ""
    """Why none are drawn, in words; empty where they are."""


NO_SHARES = SharesView(0, float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True, slots=True)
class WindowView:
    """The newest load window."""

    num_steps: int
    coverage: float
    age_s: float
    """Seconds since the newest report in it; infinite where there is none."""
    rejected_reports: int


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as the controller sees it."""

    rank: int
    node: str
    is_connected: bool
    epoch: int
    phase: str
    report_age_s: float
    step: int


@dataclass(frozen=True, slots=True)
class RefusalView:
    """A rank that was refused at its Hello, and asks again."""

    deployment: str
    rank: int
    why: str
    age_s: float
    """Seconds since it last asked."""


@dataclass(frozen=True, slots=True)
class RunningView:
    """The plan that runs, or ran last."""

    plan_id: str
    phase: str
    """drafted, admitted, running, done, stopped, rejected, expired."""
    wave: int
    """Waves settled so far."""
    num_waves: int
    wave_phase: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlanningView:
    """How planning fares."""

    num_skipped: int
    """Times there was nothing to do."""
    num_failed: int
    last_skip: str
    """Reason code of the last time, e.g. insufficient_samples."""
    last_error: str


@dataclass(frozen=True, slots=True)
class OperationView:
    """What is allowed and what runs."""

    is_idle: bool
    halt: HaltStatus
    freeze: Freeze | None
    running: RunningView | None
    planning: PlanningView
    drained: tuple[int, ...] = ()
    """Ranks that no plan gives experts, ascending."""
    degraded: str = ""
    """Which ranks are away and which experts no other rank holds; empty while none is."""
    drained_so_far: str = ""
    """Whether the drained ranks may be taken out; empty while none is drained."""


@dataclass(frozen=True, slots=True)
class StatusView:
    """One deployment at one look."""

    deployment: str
    epoch: int
    revision: int
    generation: int
    settled_age_s: float
    ranks: tuple[RankView, ...]
    window: WindowView
    imbalance: ImbalanceView
    operation: OperationView
    shares: SharesView = NO_SHARES


@dataclass(frozen=True, slots=True, eq=False)
class HeatView:
    """Heat of the newest window; layers as asked."""

    deployment: str
    layers: tuple[int, ...]
    """MoE layer index of each row."""
    model_layers: tuple[int, ...]
    """The model's own number of each."""
    tokens: FloatArray
    """[len(layers), E]"""
    rank_load: FloatArray
    """[len(layers), N]"""
    imbalance: FloatArray
    """[len(layers)]"""
    num_steps: int
    coverage: float


@dataclass(frozen=True, slots=True, eq=False)
class PlanView:
    """A plan with its verdict; what `plan` and `explain` show."""

    deployment: str
    plan: Plan
    verdict: Verdict
    phase: str
    is_dry_run: bool
    drawn_at_s: float


@dataclass(frozen=True, slots=True)
class NothingView:
    """There is nothing to do, and why."""

    deployment: str
    reason: str
    """Code, e.g. balanced, insufficient_samples."""
    text: str


@dataclass(frozen=True, slots=True)
class RunView:
    """How a plan that was applied stands."""

    deployment: str
    plan_id: str
    phase: str
    epoch: int
    """Epoch served now."""
    moves: int
    bytes_moved: int
    text: str


@dataclass(frozen=True, slots=True)
class HistoryView:
    """Newest first."""

    deployment: str
    entries: tuple[HistoryEntry, ...]
