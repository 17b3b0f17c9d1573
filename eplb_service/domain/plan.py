"""A plan: a priced way from the placement that is served to a better one.

Axes    L MoE layers
"""

from dataclasses import dataclass
from enum import StrEnum

from eplb_service.domain.ids import CountArray, Digest, Epoch, FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, Shares, even_shares
from eplb_service.domain.wave import WaveContent

MOST_PAYBACK = 1e9
"""Steps beyond which a pay-back is told as never: a year of steps of 30 ms."""


class Origin(StrEnum):
    """As whose a plan is judged."""

    AUTOMATIC = "automatic"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Cause:
    """Who asked for a plan, and why."""

    origin: Origin
    reason: str
    """In the asker's words."""
    who: str = ""
    """Name of the person who asked; empty where the controller did by itself."""


class Answer(StrEnum):
    """What a verdict says."""

    YES = "yes"
    THROTTLE = "throttle"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one gate says about a plan."""

    gate: str
    answer: Answer
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Yes, throttle (only the first `num_waves` waves) or no, and every gate that spoke."""

    answer: Answer
    num_waves: int
    """Waves that may run; all of them on yes, none on no."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Moving:
    """What a plan moves, layer by layer, and how long that is expected to take.

    No layers where a controller of the release before does not say.
    """

    num_moves: CountArray
    """[L] slots that get another expert."""
    num_bytes: CountArray
    """[L] bytes that ranks send each other."""
    seconds: FloatArray
    """[L] that the layer's busiest rank sends, or receives; NaN where no link was measured yet."""
    whole_s: float
    """All waves, one after the other; less than the sum of layers where they travel together. NaN
    where no link was measured yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """What a plan costs and what it promises."""

    num_moves: int
    """Slots that get another expert."""
    num_bytes: int
    """Bytes that ranks send each other; copies within a rank are free."""
    imbalance_before: FloatArray
    """[L] NaN where the layer has no load."""
    imbalance_after: FloatArray
    """[L] predicted by the plan's own heat and shares."""
    payback_steps: float
    """Steps until the time won equals the time spent; infinite where nothing is won."""
    step_s: float
    """Length of a step now; 0 where none was measured."""
    expert_s: float
    """Of it, expert computation on the slowest rank, all layers."""
    won_s: float
    """What each step is expected to win."""
    stall_s: float
    """What serving is expected to lose to the whole plan."""
    moving: Moving


@dataclass(frozen=True, slots=True, eq=False)
class PlannedWave:
    """One wave with what stands after it; numbered and expiring only when it is spent."""

    content: WaveContent
    placement: Placement
    ownership: Ownership

    @property
    def shares(self) -> Shares:
        """Revision 0 of the wave's epoch: the even shares of its placement.

        Derived, since the tables of a large deployment are a hundred times larger than
        its placement and a plan may have many waves.
        """
        return even_shares(self.placement, self.ownership)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """From one epoch onward in waves; what stands after any wave is valid."""

    plan_id: str
    policy: str
    cause: Cause
    base_epoch: Epoch
    base: Digest
    waves: tuple[PlannedWave, ...]
    price: Price
    heat_note: str
    """What the heat rests on: phase, steps, coverage."""
