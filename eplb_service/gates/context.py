"""What a gate may look at."""

from dataclasses import dataclass

from eplb_service.domain.plan import Plan
from eplb_service.gates.settings import GateSettings


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the load window says of itself, and what it measured."""

    num_steps: int
    coverage: float
    """Share of ranks that reported, 0 to 1."""
    tokens_per_expert: float
    """Mean over experts of the layers with data."""
    imbalance_mean: float
    """Measured, over layers with data; NaN without data."""
    imbalance_worst: float
    """NaN without data."""
    noise: float = 0.0
    """Imbalance that counting alone feigns, mean over layers with data; NaN without data."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How the deployment stands at this moment."""

    halt: str
    """The halt that stands, in words; empty where none does."""
    frozen_for_s: float
    """Seconds until a freeze ends; 0 where none stands."""
    freeze_reason: str
    since_last_plan_s: float
    """Seconds since a plan last ended; infinite where none did."""
    num_fruitless: int = 0
    """Plans in a row, up to the last one, of which no wave settled."""
    trust: float = 1.0
    """Share of a promise to believe, from what earlier plans kept of theirs."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one plan may cost; binds an operator's plans too."""

    max_moves: int
    max_bytes: int
    per_layer: int | None = None
    """Moves of one layer; None: any."""
    per_rank: int | None = None
    """Moves into one rank; None: any."""


@dataclass(frozen=True, slots=True, eq=False)
class GateContext:
    """Everything that the gates judge by."""

    plan: Plan
    evidence: Evidence
    standing: Standing
    budget: Budget
    settings: GateSettings
