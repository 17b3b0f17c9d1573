"""What the controller remembers of one wave, what happens to it, and what it asks for.

SPENT -> ACCEPTED -> MOVING -> STAGED -> MAY_COMMIT -> COMMITTED -> SETTLED
any before STAGED -> ABORTED; MAY_COMMIT -> ABORTED only by the ranks' word
"""

from dataclasses import dataclass
from enum import StrEnum

from eplb_service.domain.ids import Epoch, Incarnation
from eplb_service.protocol.messages import (
    Accepted,
    Armed,
    CutOver,
    Dropped,
    Nack,
    RankStatus,
    Staged,
    WaveName,
)


class WavePhase(StrEnum):
    """How far the wave is, as the controller knows it."""

    SPENT = "spent"
    ACCEPTED = "accepted"
    """At least one rank accepted."""
    MOVING = "moving"
    """All ranks accepted; they begin at their next agreement."""
    STAGED = "staged"
    """All ranks staged; MAY_COMMIT is being recorded."""
    MAY_COMMIT = "may_commit"
    COMMITTED = "committed"
    SETTLED = "settled"
    ABORTED = "aborted"


class Heard(StrEnum):
    """The furthest word of one rank about the wave."""

    NOTHING = "nothing"
    ACCEPTED = "accepted"
    STAGED = "staged"
    ARMED = "armed"
    CUT_OVER = "cut_over"
    DROPPED = "dropped"


PROGRESS = (Heard.NOTHING, Heard.ACCEPTED, Heard.STAGED, Heard.ARMED)
ABORTABLE = (WavePhase.SPENT, WavePhase.ACCEPTED, WavePhase.MOVING)


@dataclass(frozen=True, slots=True)
class WaveState:
    """One wave as the controller sees it."""

    wave: WaveName
    incarnation: Incarnation
    expires_at_step: int
    phase: WavePhase
    heard: tuple[Heard, ...]
    """Per rank."""
    reason: str
    """Why it was aborted, in words; empty otherwise."""
    step: int
    """The step of the cutover, 0 before it is known."""

    @property
    def is_over(self) -> bool:
        """Whether every rank's end of it is known, so that the next wave may start."""
        return self.phase is WavePhase.SETTLED or (
            self.phase is WavePhase.ABORTED and all(h is Heard.DROPPED for h in self.heard)
        )


# ---- events -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """A rank of the wave's incarnation said a word about a wave."""

    rank: int
    word: Accepted | Nack | Staged | Armed | CutOver | Dropped


@dataclass(frozen=True, slots=True)
class Greeted:
    """A rank of the wave's incarnation connected and told its status."""

    rank: int
    status: RankStatus


@dataclass(frozen=True, slots=True)
class Recorded:
    """A Record effect is durable."""

    phase: WavePhase


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Operator or deadline wants the wave ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class Nudge:
    """Time passed: say again what was not answered."""


@dataclass(frozen=True, slots=True)
class GroupRestarted:
    """Every rank of a newer incarnation has told what it serves; all serve `served`."""

    served: Epoch


Event = Said | Greeted | Recorded | GiveUp | Nudge | GroupRestarted


# ---- effects ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Write the phase down, durably, before any later effect of the wave."""

    phase: WavePhase
    reason: str


@dataclass(frozen=True, slots=True)
class SendOrder:
    """Send the rank its order."""

    rank: int


@dataclass(frozen=True, slots=True)
class SendArm:
    """Tell the rank that all are staged."""

    rank: int


@dataclass(frozen=True, slots=True)
class SendAbort:
    """Tell the rank to withdraw."""

    rank: int


@dataclass(frozen=True, slots=True)
class WordsDiffer:
    """Ranks of one incarnation tell different ends of the wave: halt the deployment.

    A controller that was fenced, and so missed a record, sees this too: it must be written
    to the store, which refuses a generation that no longer leads, before anything is done.
    """

    text: str


Effect = Record | SendOrder | SendArm | SendAbort | WordsDiffer
Step = tuple[WaveState, tuple[Effect, ...]]
