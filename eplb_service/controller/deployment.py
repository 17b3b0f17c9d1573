"""One deployment as the controller holds it: its driver, load windows, plans and switches."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from eplb_service.controller.driver import DeploymentDriver
from eplb_service.controller.meter import Links, Meter
from eplb_service.controller.plan_book import PlanBook
from eplb_service.controller.records import Freeze
from eplb_service.controller.revisions import ShareStand, even_only
from eplb_service.controller.tuning import Tuner, Tuning
from eplb_service.controller.views import (
    NothingView,
    PlanningView,
    PlanView,
    RunView,
    StatusView,
)
from eplb_service.domain.heat import mean_with_data
from eplb_service.domain.ids import CountArray, Epoch, Incarnation, Revision
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import Origin, Plan
from eplb_service.domain.shares import Ownership
from eplb_service.gates.thrash import after_wave, none_held
from eplb_service.gates.trial import PROMISES_KEPT, Pace, Trial
from eplb_service.load.forecast import Forecast
from eplb_service.load.group import Group
from eplb_service.load.tally import ReportTally
from eplb_service.load.windows import LoadWindows


@dataclass(frozen=True, slots=True)
class Answered:
    """What a request id was answered, or will be."""

    what: str
    """Verb and what it was asked for."""
    task: asyncio.Task[PlanView | NothingView | RunView | StatusView | Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Switches:
    """What operators have set."""

    freeze: Freeze | None
    overrides: str
    """JSON."""
    drained: tuple[int, ...] = ()
    """Ranks that no plan gives experts, ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class OnTrial:
    """A plan that was carried out and is still to be judged."""

    trial: Trial
    old: Placement
    """What was served before it."""
    epoch: Epoch
    """What it ended in."""
    may_roll_back: bool
    """Only plans that nobody asked for, and no rollback."""
    worse_at: int = -1
    """Last step of a first window that was worse; -1 without one."""


@dataclass(frozen=True, slots=True, eq=False)
class Foresight:
    """A forecast, and how far it has read; what is expected outlives cutovers and rank groups."""

    forecast: Forecast
    incarnation: Incarnation
    last_step: int


class Deployment:
    """Holds what belongs together; the rooms around it do the work."""

    def __init__(
        self,
        driver: DeploymentDriver,
        switches: Switches,
        tuner: Tuner,
        *,
        spent: tuple[Epoch, Revision] = (Epoch(0), Revision(0)),
    ) -> None:
        self.driver = driver
        self.switches = switches
        self.book = PlanBook()
        self.tally = PlanningView(num_skipped=0, num_failed=0, last_skip="", last_error="")
        self.windows: LoadWindows | None = None
        self.counted_incarnation = Incarnation(0)
        self.returned_incarnation = Incarnation(0)
        """The incarnation that a plan back to the settled placement was drawn for."""
        self.heard_at_s: dict[int, float] = {}
        """Monotonic time of each rank's last accepted report."""
        self.num_rejected = 0
        self.last_plan_ended_s = float("-inf")
        """Monotonic time."""
        self.num_fruitless = 0
        """Plans in a row of which no wave settled."""
        self.trial: OnTrial | None = None
        self.kept_promises: tuple[float, ...] = ()
        """Share of its promise that each plan judged last has kept."""
        self.rolling_back = ""
        """Id of the last plan that took another one back."""
        self.paces: tuple[Pace, ...] = ()
        """Of the last windows that were looked at while no plan ran; they share no step."""
        self.held_back = none_held(0)
        self.shares = ShareStand(spent)
        self.foresight: Foresight | None = None
        self._told: dict[str, str] = {}
        self.answers: OrderedDict[str, Answered] = OrderedDict()
        """By request id, so that a repeated one acts once."""
        self._tuner = tuner
        self.links = Links()
        self.meter = Meter(ReportTally(self.tuning.windows.report_steps))

    @property
    def name(self) -> str:
        """The deployment's name."""
        return self.driver.errands.deployment

    @property
    def tuning(self) -> Tuning:
        """The tuning in force."""
        return self._tuner.tuning(self.switches.overrides)

    @property
    def counted_placement(self) -> Placement:
        """What the load windows count under; for a moment it is not what the state serves."""
        if self.windows is None:
            return self.driver.state.serving.placement
        return self.windows.group.placement

    @property
    def drained(self) -> tuple[int, ...]:
        """Drained ranks of the group as it is now."""
        num_ranks = self.driver.state.serving.placement.layout.num_ranks
        return tuple(rank for rank in self.switches.drained if rank < num_ranks)

    def skipped(self, reason: str) -> None:
        """Planning found nothing to do."""
        tally = self.tally
        self.tally = replace(tally, num_skipped=tally.num_skipped + 1, last_skip=reason)

    def failed(self, text: str) -> None:
        """Planning failed."""
        self.tally = replace(self.tally, num_failed=self.tally.num_failed + 1, last_error=text)

    def is_news(self, trouble: str, about: str = "plans") -> bool:
        """Whether trouble is another than the last, so that history is not filled with one."""
        is_other = trouble != self._told.get(about, "")
        self._told[about] = trouble
        return is_other

    @property
    def even_because(self) -> str:
        """Why no shares are drawn, in words; empty where they are."""
        if not self.tuning.shares.is_automatic:
            return "the setting shares.is_automatic is off"
        return even_only(self.driver.state)

    @property
    def needs_sources(self) -> bool:
        """Whether shares rest on who sends what: not where all ranks see the same tokens."""
        membership = self.driver.state.membership
        known = membership.known if membership else ()
        return bool(known) and known[0].profile.ownership is Ownership.OWN

    def plan_ended(self, *, num_settled: int, now_s: float) -> None:
        """A plan is over; now_s is monotonic."""
        self.last_plan_ended_s = now_s
        self.num_fruitless = 0 if num_settled else self.num_fruitless + 1

    def moved(self, moved: CountArray, undone: CountArray, *, now_s: float) -> None:
        """A wave of an automatic plan settled; moved and undone [L], now_s monotonic."""
        before = self.held_back
        if before.until_s.shape != moved.shape:
            before = none_held(len(moved))
        hold_s = self.tuning.gates.hold_back_s
        self.held_back = after_wave(before, moved, undone, now_s=now_s, hold_s=hold_s)

    def remember(self, kept: float) -> None:
        """Keep the outcome of a plan, for gates to believe the next one accordingly."""
        self.kept_promises = (*self.kept_promises, kept)[-PROMISES_KEPT:]

    def is_counting_what_is_served(self) -> bool:
        """Whether the load windows belong to the group and placement of this moment."""
        state, windows = self.driver.state, self.windows
        membership = state.membership
        if windows is None or membership is None or not membership.is_complete:
            return False
        group = windows.group
        profiles = tuple(member.profile for member in membership.known)
        return (
            self.counted_incarnation == membership.incarnation
            and group.profiles == profiles
            and (group.epoch, group.digest)
            == (state.serving.wave.epoch, state.serving.placement.digest())
        )

    def recount(self) -> None:
        """Start the load windows anew for the group and placement that are served now."""
        state = self.driver.state
        membership = state.membership
        if membership is None or not membership.is_complete:
            self.windows = None
            return
        if self.counted_incarnation != membership.incarnation:
            self.heard_at_s.clear()
            self.meter.tally.forget()
        self.counted_incarnation = membership.incarnation
        serving = state.serving
        group = Group(
            epoch=serving.wave.epoch,
            placement=serving.placement,
            profiles=tuple(member.profile for member in membership.known),
            top_k=membership.shape.top_k,
        )
        self.windows = LoadWindows(group, self.tuning.windows)


def on_trial(deployment: Deployment, plan: Plan, old: Placement) -> OnTrial:
    """Put a plan on trial that has just changed what is served."""
    before, after = plan.price.imbalance_before, plan.price.imbalance_after
    is_rollback = plan.plan_id == deployment.rolling_back
    promised = mean_with_data(before) - mean_with_data(after)
    return OnTrial(
        Trial(plan.plan_id, promised, deployment.paces, is_rollback),
        old,
        deployment.driver.state.serving.wave.epoch,
        may_roll_back=plan.cause.origin is Origin.AUTOMATIC and not is_rollback,
    )
