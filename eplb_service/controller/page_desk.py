"""The desk where the page asks: reads only, each answer a moment's worth of work.

Axes    L MoE layers   P slots   C layers that a plan changes
"""

from dataclasses import dataclass
from typing import Protocol

from eplb_service.controller.views import HeatView, HistoryView, StatusView
from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import Cause, Finding


@dataclass(frozen=True, slots=True)
class PlanLine:
    """A kept plan in one line."""

    plan_id: str
    policy: str
    cause: Cause
    phase: str
    ending: str
    drawn_at_s: float
    """Unix time."""
    cost: tuple[int, int]
    """Moves, and bytes that ranks send each other."""
    imbalance: tuple[float, float]
    """Mean over layers with load, before and as planned; NaN without load."""


@dataclass(frozen=True, slots=True)
class PlanMap:
    """A kept plan slot by slot, in the layers that it changes."""

    layers: tuple[int, ...]
    """[C]"""
    model_layers: tuple[int, ...]
    """[L] the model's own number of every layer."""
    slot_starts: tuple[int, ...]
    """[N + 1] first slot of every rank, and one past the last."""
    before: IntArray
    """[C, P] expert in each slot, -1 where it is empty."""
    after: IntArray
    """[C, P]"""
    moves: tuple[tuple[int, int, int, int, int], ...]
    """Layer, expert, slot that it is read from, slot that it is written to, wave."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """One deployment as the page shows it at once."""

    status: StatusView
    heat_key: str
    """Another one tells that the heat is another."""
    plans: tuple[PlanLine, ...]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class PlacedHeat:
    """Heat of the newest window with the placement that it was counted under."""

    heat: HeatView
    placement: Placement


class PageDesk(Protocol):
    """What the page may ask."""

    async def looks(self) -> tuple[Look, ...]:
        """Every deployment, by name; raises NotLeader."""
        ...

    async def heat(self, deployment: str) -> PlacedHeat:
        """Heat of all layers; raises InsufficientSamples, UnknownDeployment or NotLeader."""
        ...

    async def plan(self, deployment: str, plan_id: str) -> PlanMap:
        """A plan that is still kept; raises UnknownPlan, UnknownDeployment or NotLeader."""
        ...

    async def history(self, deployment: str) -> HistoryView:
        """The newest lines; raises UnknownDeployment or NotLeader."""
        ...
