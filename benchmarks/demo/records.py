"""What a rank tells the supervisor, and the supervisor a rank.

Axes    L MoE layers
"""

from dataclasses import dataclass

from benchmarks.traffic import Schedule

__all__ = [
    "AgentSetup",
    "Begin",
    "Checked",
    "Failed",
    "Progress",
    "Ready",
    "SegmentDone",
    "Serve",
    "StepRecord",
    "Stop",
]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one rank."""

    step: int
    late_s: float
    """From the step's slot in the schedule to its start."""
    seconds: float
    epoch: int
    """Epoch of the placement that the step was served on."""
    revision: int
    """Revision of the shares by which this rank's tokens were sent; 0 where they are even."""
    is_migrating: bool
    """Whether an order was held (accepted, moving, staged or armed) while the step ran."""
    load: tuple[int, ...]
    """[L] rows that this rank's slots computed."""
    num_installed: int
    """Experts that were put into slots of this rank right before the step, over all layers."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One step's output, compared with the reference."""

    step: int
    error: float
    """Largest over tokens, relative to the token's largest output; NaN if it is not finite."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Some steps of a rank."""

    rank: int
    steps: tuple[StepRecord, ...]
    checks: tuple[Checked, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank waits for the next command."""

    rank: int


@dataclass(frozen=True, slots=True)
class SegmentDone:
    """The rank served and checked every step of a segment."""

    rank: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank cannot go on."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """How a rank reaches its controller."""

    endpoint: str
    model: str


@dataclass(frozen=True, slots=True)
class Serve:
    """Get ready to serve some steps of a schedule, from the flat placement on."""

    schedule: Schedule
    first_step: int
    num_steps: int
    agent: AgentSetup | None
    """None: serve without a control plane."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Every rank is ready; serve."""

    starts_at_s: float
    """Monotonic clock; the slot of the first step."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""
