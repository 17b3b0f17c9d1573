"""Words between a rank and the controller.

Every word travels on the stream of one rank, whose Hello named deployment, rank
and incarnation. Words down carry the controller's generation; words about a wave
carry its epoch and digest.
"""

from dataclasses import dataclass
from enum import StrEnum

from eplb_service.domain.deployment import DeploymentIdentity, ModelShape, RankProfile
from eplb_service.domain.ids import Digest, Epoch, Generation, Incarnation
from eplb_service.domain.placement import Placement
from eplb_service.domain.report import LoadReport
from eplb_service.domain.shares import ShareName, Shares
from eplb_service.domain.wave import Order


class RankPhase(StrEnum):
    """Where a rank stands with the order it holds."""

    SERVING = "serving"
    ACCEPTED = "accepted"
    MOVING = "moving"
    STAGED = "staged"
    ARMED = "armed"
    DRAINING = "draining"
    """The order is dropped; a transfer round that all ranks began is still completed."""


class NackReason(StrEnum):
    """Why a rank refused an order."""

    BUSY = "busy"
    """Transfers of another order have begun; nothing is withdrawn, ask again."""
    CONFLICT = "conflict"
    """The number is held, or was, under another digest."""
    STALE = "stale"
    """The number is below what the rank serves."""
    WRONG_BASE = "wrong_base"
    UNSOUND = "unsound"
    NO_ROOM = "no_room"
    EXPIRED = "expired"
    HALTED = "halted"


FINAL_NACKS = frozenset(
    {
        NackReason.WRONG_BASE,
        NackReason.UNSOUND,
        NackReason.NO_ROOM,
        NackReason.EXPIRED,
        NackReason.HALTED,
    }
)
"""Refusals that raise the rank's high mark: the number can never be accepted there again."""


class DropReason(StrEnum):
    """Why a rank dropped an order that it held, or will never hold."""

    ABORTED = "aborted"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """Another rank withdrew."""
    TRANSFER_FAILED = "transfer_failed"
    DIGEST_MISMATCH = "digest_mismatch"
    HALTED = "halted"
    REFUSED = "refused"
    BELOW_MARK = "below_mark"
    """The number is at or below the rank's high mark and was never served."""


class OutcomeKind(StrEnum):
    """How the last order that a rank held ended there."""

    CUT_OVER = "cut_over"
    DROPPED = "dropped"


# ---- up -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaveName:
    """Number and digest of a wave."""

    epoch: Epoch
    digest: Digest


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one wave at one rank."""

    wave: WaveName
    kind: OutcomeKind
    step: int


@dataclass(frozen=True, slots=True)
class HaltStatus:
    """The halt that stands, or the last one that stood."""

    number: int
    """Counts halts of one incarnation; equal on all ranks."""
    is_active: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What a rank tells of its protocol state; enough to go on from after any loss of words."""

    served: ShareName
    """Epoch, fingerprint of phy2log, revision and digest of the shares in use."""
    high_mark: Epoch
    phase: RankPhase
    held: WaveName | None
    outcome: Outcome | None
    halt: HaltStatus
    step: int
    is_idle: bool


@dataclass(frozen=True, slots=True, eq=False)
class Hello:
    """First word of a stream: who speaks and where it stands."""

    identity: DeploymentIdentity
    shape: ModelShape
    profile: RankProfile
    incarnation: Incarnation
    placement: Placement
    """What is served, whole: slot counts of all ranks and phy2log."""
    status: RankStatus
    generation_seen: Generation


@dataclass(frozen=True, slots=True)
class Accepted:
    """The order is sound here and held; nothing moves yet."""

    wave: WaveName


@dataclass(frozen=True, slots=True)
class Nack:
    """The order was refused."""

    wave: WaveName
    reason: NackReason
    text: str


@dataclass(frozen=True, slots=True)
class Staged:
    """All my receives are verified by digest and all my sends are complete."""

    wave: WaveName


@dataclass(frozen=True, slots=True)
class Armed:
    """I will cut over at the first agreement at which all are armed."""

    wave: WaveName


@dataclass(frozen=True, slots=True)
class CutOver:
    """I switched before the forward of `step`."""

    wave: WaveName
    step: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """I do not hold the wave and never will again."""

    wave: WaveName
    step: int
    reason: DropReason


@dataclass(frozen=True, slots=True)
class Halted:
    """A halt began or ended here, by agreement."""

    halt: HaltStatus
    step: int


@dataclass(frozen=True, slots=True)
class Idle:
    """The group runs no steps (or runs again): step-counted limits stand still."""

    is_idle: bool
    step: int


@dataclass(frozen=True, slots=True)
class SharesApplied:
    """A revision of the dispatch tables is in use."""

    shares: ShareName
    step: int


Word = Accepted | Nack | Staged | Armed | CutOver | Dropped | Halted | Idle | SharesApplied
"""Words of the protocol, after Hello and beside reports."""

Up = Hello | LoadReport | Word


# ---- down ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Welcome:
    """Answer to Hello."""

    generation: Generation
    incarnation: Incarnation
    epoch: Epoch
    """Epoch of `placement`."""
    placement: Placement
    """What a new incarnation should load before its weights, if it can."""
    shares: Shares
    report_every_steps: int
    sent_every_reports: int
    """Every how many reports the sent counts come along."""


@dataclass(frozen=True, slots=True, eq=False)
class NewShares:
    """A revision of one rank's dispatch table."""

    generation: Generation
    incarnation: Incarnation
    name: ShareName
    table_digest: Digest
    """Fingerprint of the table addressed to this rank; `name.digest` covers all ranks' tables."""
    shares: Shares
    """The addressed rank's table alone (one source), or the one that all use."""


@dataclass(frozen=True, slots=True)
class Arm:
    """All ranks are staged and MAY_COMMIT is on record."""

    generation: Generation
    incarnation: Incarnation
    wave: WaveName


@dataclass(frozen=True, slots=True)
class Abort:
    """Withdraw; ABORTED is on record."""

    generation: Generation
    incarnation: Incarnation
    wave: WaveName


@dataclass(frozen=True, slots=True)
class Resume:
    """Clear the halt with this number, after an audit that passes."""

    generation: Generation
    incarnation: Incarnation
    halt_number: int


@dataclass(frozen=True, slots=True)
class ReportAck:
    """The closing totals of this epoch arrived; stop repeating them."""

    generation: Generation
    incarnation: Incarnation
    epoch: Epoch


ToMachine = Order | NewShares | Arm | Abort | Resume
"""Words down that the rank machine handles."""

Down = Welcome | ToMachine | ReportAck
