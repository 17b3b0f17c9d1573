"""What is written down, so that a controller can die at any moment.

An epoch's number is spent here before any order leaves; MAY_COMMIT is written
before anyone is armed; the outcome is written when the ranks tell it.
"""

from dataclasses import dataclass

from eplb_service.domain.deployment import DeploymentIdentity, ModelShape
from eplb_service.domain.ids import Epoch, Generation, Incarnation, Revision
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, Shares
from eplb_service.domain.wave import WaveContent
from eplb_service.protocol.messages import WaveName
from eplb_service.protocol.wave_state import WavePhase


@dataclass(frozen=True, slots=True)
class DeploymentRecord:
    """What is known of a deployment before any rank connects."""

    identity: DeploymentIdentity
    shape: ModelShape
    ownership: Ownership
    incarnation: Incarnation
    """The highest seen."""


@dataclass(frozen=True, slots=True, eq=False)
class EpochRecord:
    """One spent number, with everything needed to send its orders again unchanged."""

    wave: WaveName
    incarnation: Incarnation
    expires_at_step: int
    content: WaveContent | None
    """None for the placement that a deployment started with."""
    placement: Placement
    """What is served once it is settled."""
    shares: Shares
    """Revision 0 of the epoch."""
    plan_id: str
    note: str
    """For people: why, and which epoch a rollback returns to."""
    spent_at_s: float
    """Unix time."""
    who: str = ""
    """Who asked for the plan; empty where the controller did by itself."""


def has_same_shape(one: Placement, other: Placement) -> bool:
    """Whether a group that serves the one could load the other."""
    shapes = [(p.layout, p.phy2log.shape, p.num_experts, p.num_shared) for p in (one, other)]
    return shapes[0] == shapes[1]


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """How far an epoch came."""

    epoch: Epoch
    phase: WavePhase
    reason: str
    step: int
    at_s: float
    """Unix time of the phase."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """No automatic plan until then."""

    until_s: float
    """Unix time."""
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of a deployment's history: a plan drawn, an epoch's end, an operator's act."""

    at_s: float
    kind: str
    """plan, wave, abort, shares, freeze, unfreeze, resume, config, drain, undrain, failure."""
    plan_id: str
    epoch: int
    text: str
    who: str = ""
    """Who asked for it; empty where the controller did by itself."""


@dataclass(frozen=True, slots=True)
class FreezeNote:
    """A freeze begins, or ends where `freeze` is None."""

    freeze: Freeze | None


@dataclass(frozen=True, slots=True)
class SettingsNote:
    """The operator's overrides, whole, as JSON."""

    settings: str


@dataclass(frozen=True, slots=True)
class DrainNote:
    """The ranks that are drained from now on, all of them."""

    ranks: tuple[int, ...]
    """Ascending."""


Note = FreezeNote | SettingsNote | DrainNote | HistoryEntry
"""What Store.keep writes."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The newest generation, and how often it said that it leads; 0 and 0 before the first."""

    generation: Generation
    beats: int


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """Everything that the store knows of one deployment."""

    record: DeploymentRecord
    settled: EpochRecord
    """The last settled (or committed) placement."""
    open_epoch: EpochRecord | None
    """A wave whose end was not yet recorded by all words."""
    open_end: EpochEnd | None
    highest_epoch: Epoch
    highest_revision: Revision
    """Of the settled epoch."""
    freeze: Freeze | None
    settings: str
    """The operator's overrides as JSON; empty object where there are none."""
    drained: tuple[int, ...] = ()
    """Ranks that operators have drained, ascending."""
