"""What the controller remembers of one deployment, what happens to it, and what it asks for.

plan: DRAFTED -> REJECTED | ADMITTED -> EXPIRED | RUNNING (wave after wave)
-> DONE | STOPPED (the rest is dropped, what stands is valid)
"""

from dataclasses import dataclass
from enum import StrEnum

from eplb_service.controller.membership import Membership
from eplb_service.controller.records import EpochEnd, EpochRecord
from eplb_service.domain.ids import Epoch
from eplb_service.domain.plan import Plan
from eplb_service.protocol.messages import Hello, Word
from eplb_service.protocol.wave_state import WavePhase, WaveState


class PlanPhase(StrEnum):
    """Where a plan is in its life."""

    DRAFTED = "drafted"
    REJECTED = "rejected"
    ADMITTED = "admitted"
    EXPIRED = "expired"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Pace:
    """Times and steps that the machine goes by."""

    nudge_interval_s: float
    """Seconds without an answer after which a word is said again."""
    wave_deadline_s: float
    """Seconds, idle time not counted, in which a wave must be staged everywhere."""
    expiry_steps: int
    """Steps from spending to expiry, besides one agreement per transfer round."""
    agree_every: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A plan that is carried out."""

    plan: Plan
    num_waves: int
    """Waves that the verdict allows."""
    num_started: int
    num_settled: int
    stopping: str
    """Why no further wave starts; empty while it goes on."""
    waited_s: float = 0.0
    """Seconds that its next wave could not start, idle time not counted."""


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """The one wave in flight."""

    record: EpochRecord
    wave: WaveState
    waited_s: float
    """Seconds since it was spent, idle time not counted."""
    since_nudge_s: float
    greeted: Hello | None = None
    """The last Hello that came meanwhile: ranks are believed when the wave is over."""


@dataclass(frozen=True, slots=True, eq=False)
class DeploymentState:
    """Everything the decisions about one deployment rest on."""

    membership: Membership | None
    """None until a rank greets."""
    serving: EpochRecord
    """What the ranks serve, or would load."""
    settled: EpochRecord
    """The last settled placement on record; differs from `serving` after a group restart
    that loaded something else."""
    highest_epoch: Epoch
    run: Run | None
    spending: EpochRecord | None
    """A number being spent; its orders leave when that is durable."""
    flight: Flight | None
    fault: str
    """Why the controller itself plans nothing until an operator resumes; empty if it does."""
    pace: Pace
    now_s: float
    """Unix time of the last event that told it."""


# ---- events -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RankGreeted:
    """A rank's stream began."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class RankSaid:
    """A rank spoke on its stream."""

    rank: int
    incarnation: int
    word: Word


@dataclass(frozen=True, slots=True)
class RankStepped:
    """A rank's report told its step."""

    rank: int
    incarnation: int
    step: int


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A rank's stream ended."""

    rank: int
    incarnation: int


@dataclass(frozen=True, slots=True, eq=False)
class RunAsked:
    """A judged plan may start."""

    plan: Plan
    num_waves: int
    now_s: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """No further wave of this plan may start; the running one finishes."""

    plan_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUpAsked:
    """End the plan that runs, and withdraw its wave unless it may have been cut over."""

    reason: str


@dataclass(frozen=True, slots=True)
class EpochSpent:
    """The number of `spending` is durable."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PhaseRecorded:
    """A phase of the wave in flight is durable."""

    epoch: Epoch
    phase: WavePhase
    now_s: float


@dataclass(frozen=True, slots=True)
class FaultCleared:
    """An operator resumed."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""

    elapsed_s: float
    now_s: float


Event = (
    RankGreeted
    | RankSaid
    | RankStepped
    | RankLeft
    | RunAsked
    | StopAsked
    | GiveUpAsked
    | EpochSpent
    | PhaseRecorded
    | FaultCleared
    | Ticked
)


# ---- effects ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """Write down a deployment, a newer incarnation of it, or a placement that was adopted."""

    membership: Membership
    first: EpochRecord


@dataclass(frozen=True, slots=True, eq=False)
class SpendEpoch:
    """Spend this number; answer with EpochSpent."""

    record: EpochRecord


@dataclass(frozen=True, slots=True)
class RecordPhase:
    """Record how far the wave came; answer with PhaseRecorded."""

    end: EpochEnd


@dataclass(frozen=True, slots=True, eq=False)
class SendOrderTo:
    """Send a rank its part of the wave in flight."""

    rank: int
    record: EpochRecord


@dataclass(frozen=True, slots=True)
class SendArmTo:
    """Arm a rank."""

    rank: int
    record: EpochRecord


@dataclass(frozen=True, slots=True)
class SendAbortTo:
    """Have a rank withdraw."""

    rank: int
    record: EpochRecord


@dataclass(frozen=True, slots=True, eq=False)
class WaveEnded:
    """A wave is over: settled or aborted by all."""

    record: EpochRecord
    phase: WavePhase
    reason: str
    plan: Plan | None
    """None where the plan was lost with an earlier controller."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanStarted:
    """A plan runs from now on."""

    plan: Plan


@dataclass(frozen=True, slots=True, eq=False)
class PlanEnded:
    """A plan is over."""

    plan: Plan
    phase: PlanPhase
    num_settled: int
    reason: str


@dataclass(frozen=True, slots=True)
class Faulted:
    """The ranks contradict each other or the record: nothing is planned until a resume."""

    text: str


Effect = (
    Register
    | SpendEpoch
    | RecordPhase
    | SendOrderTo
    | SendArmTo
    | SendAbortTo
    | WaveEnded
    | PlanStarted
    | PlanEnded
    | Faulted
)
Step = tuple[DeploymentState, tuple[Effect, ...]]
