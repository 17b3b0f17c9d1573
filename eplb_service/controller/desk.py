"""The desks where others meet the controller: one for ranks, one for operators.

The server talks to these protocols; controller.shell implements them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from eplb_service.controller.ports import Outbox
from eplb_service.controller.views import (
    HeatView,
    HistoryView,
    NothingView,
    PlanView,
    RefusalView,
    RunView,
    StatusView,
)
from eplb_service.domain.report import LoadReport
from eplb_service.protocol.messages import Hello, Word


class RankLink(Protocol):
    """One open stream of one rank."""

    async def said(self, word: Word) -> None:
        """Handle a word of the protocol."""
        ...

    def reported(self, report: LoadReport) -> None:
        """Take a load report; raises InvalidReport, after counting it, when it is refused."""
        ...

    async def closed(self) -> None:
        """The stream ended."""
        ...


class RankDesk(Protocol):
    """Where ranks register."""

    async def hello(self, hello: Hello, outbox: Outbox) -> RankLink:
        """Register a rank and welcome it; raises RegistrationRefused, StaleMessage, NotLeader."""
        ...

    def refused(self, deployment: str) -> tuple[RefusalView, ...]:
        """Ranks that were refused and ask again, of the deployment named, or of all."""
        ...


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What an operator may ask of a plan."""

    deployment: str
    """Empty: the only one there is."""
    policy: str
    """Empty: the configured one."""
    layers: tuple[int, ...]
    """MoE layer indexes; empty: all."""
    reason: str
    who: str
    """Who asks."""


@dataclass(frozen=True, slots=True)
class MapRequest:
    """To which expert map a deployment shall go."""

    text: str
    """The expert-map file's, JSON."""
    may_reshape: bool = False
    """Whether a map that was made for other slot counts may be fitted to the deployment."""
    is_dry_run: bool = False
    """Whether the plan is only drawn and kept, for `apply`."""


@dataclass(frozen=True, slots=True)
class ActRequest:
    """Who asks for a change, why, and under which id: the same id acts once."""

    deployment: str
    request_id: str
    who: str
    reason: str


class OperatorDesk(Protocol):
    """The verbs of operators. Reads change nothing; acts name what they change."""

    async def status(self, deployment: str) -> tuple[StatusView, ...]:
        """All deployments, or the one named."""
        ...

    async def heat(self, deployment: str, layers: tuple[int, ...]) -> HeatView:
        """Heat of the newest window."""
        ...

    async def plan(self, request: PlanRequest) -> PlanView | NothingView:
        """Draw, price and judge a plan; change nothing."""
        ...

    async def explain(self, deployment: str, plan_id: str) -> PlanView:
        """A plan that is still kept, with every gate that spoke."""
        ...

    async def history(self, deployment: str, limit: int) -> HistoryView:
        """What happened, newest first."""
        ...

    async def export(self, deployment: str, epoch: int) -> str:
        """The placement of an epoch (0: the served one) as expert-map JSON."""
        ...

    async def get_config(self, deployment: str) -> Mapping[str, str]:
        """Every setting that an operator may change, by dotted name, as JSON values."""
        ...


class DrainDesk(Protocol):
    """The verbs that take ranks out and let them in."""

    async def drain(self, act: ActRequest, rank: int) -> PlanView | NothingView:
        """Empty a rank by a plan, and let no later plan give it experts."""
        ...

    async def undrain(self, act: ActRequest, rank: int) -> PlanView | NothingView:
        """Let a drained rank be used again, by a plan."""
        ...


class ActDesk(DrainDesk, Protocol):
    """The verbs that change something."""

    async def apply(self, act: ActRequest, plan_id: str) -> RunView:
        """Start a kept plan; raises PlanOvertaken, PlanRejected, DeploymentBusy, UnknownPlan."""
        ...

    async def rebalance(self, act: ActRequest, request: PlanRequest) -> PlanView | NothingView:
        """Plan, and apply if the verdict is yes; idempotent by request id."""
        ...

    async def abort(self, act: ActRequest, plan_id: str) -> RunView:
        """End a plan after its running wave."""
        ...

    async def rollback(self, act: ActRequest, epoch: int | None) -> PlanView | NothingView:
        """Apply a plan back to the placement of an earlier epoch (None: the one before)."""
        ...

    async def freeze(self, act: ActRequest, seconds: float) -> StatusView:
        """Allow no automatic plan for a time; 0 seconds lifts it."""
        ...

    async def resume(self, act: ActRequest, halt_number: int) -> StatusView:
        """Ask all ranks to clear a halt."""
        ...

    async def set_config(self, act: ActRequest, values: Mapping[str, str]) -> Mapping[str, str]:
        """Change settings by dotted name; all or none."""
        ...

    async def import_map(self, act: ActRequest, request: MapRequest) -> PlanView | NothingView:
        """Apply a plan to the placement of an expert-map file, or only draw it."""
        ...


class RunDesk(Protocol):
    """Watching a plan that runs."""

    async def run(self, deployment: str, plan_id: str) -> RunView:
        """How an applied plan stands."""
        ...
