"""What the rank's machine remembers, what happens to it, and what it asks for.

SERVING(n) -> ACCEPTED -> MOVING -> STAGED -> ARMED -> SERVING(m)
anything held, dropped by agreement -> SERVING(n), by way of DRAINING while a
transfer round that all ranks began is completed
"""

from dataclasses import dataclass

from eplb_service.domain.ids import NO_DIGEST, Epoch, Generation, Incarnation, Revision
from eplb_service.domain.shares import Ownership, ShareName, Shares
from eplb_service.domain.wave import Order
from eplb_service.protocol.agreement import NO_WAVE, NOT_MOVING, Agreement, Ballot, HaltWish
from eplb_service.protocol.messages import (
    Abort,
    Arm,
    DropReason,
    HaltStatus,
    NackReason,
    NewShares,
    Outcome,
    RankPhase,
    RankStatus,
    Resume,
    WaveName,
    Word,
)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The order that a rank holds."""

    order: Order
    name: WaveName
    phase: RankPhase
    rounds_begun: int = 0
    rounds_done: int = 0
    withdrawn: DropReason | None = None
    """Set when this rank will not finish; it holds until an agreement drops the order."""

    @property
    def is_moving(self) -> bool:
        """Whether transfers have begun."""
        return self.phase in (RankPhase.MOVING, RankPhase.STAGED, RankPhase.ARMED)


@dataclass(frozen=True, slots=True)
class Halt:
    """This rank's view of the halt, and what it wishes of it."""

    status: HaltStatus
    wish: HaltWish = HaltWish.NONE
    wish_reason: str = ""
    bad_slots: tuple[int, ...] = ()
    """Numbers of slots that were found wrong here and that the group does not know of yet."""
    avoided: tuple[int, ...] = ()
    """Numbers of the slots that the group routes around, the newest last."""


@dataclass(frozen=True, slots=True, eq=False)
class RankState:
    """Everything that one rank's protocol needs to remember."""

    incarnation: Incarnation
    generation: Generation
    """Highest seen; words of lower ones are refused."""
    ownership: Ownership
    served: ShareName
    high_mark: Epoch
    held: Held | None
    outcome: Outcome | None
    pending: NewShares | None
    halt: Halt
    step: int
    """The step of the last agreement."""


# ---- events -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """An order with what the agent's check found; `fault` is None where it is sound."""

    order: Order
    fault: tuple[NackReason, str] | None


@dataclass(frozen=True, slots=True)
class RoundDone:
    """All my sends and receives of a round are complete and verified."""

    wave: WaveName
    number: int


@dataclass(frozen=True, slots=True)
class RoundFailed:
    """A round is over here, but what arrived must not be used."""

    wave: WaveName
    number: int
    reason: DropReason
    text: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """This rank cannot finish the wave it holds."""

    wave: WaveName
    reason: DropReason


@dataclass(frozen=True, slots=True)
class RaiseHalt:
    """Something is wrong here that no wave may run over."""

    reason: str
    bad_slot: int = 0
    """Number of a slot that does not hold what it should; 0 where it is something else."""


@dataclass(frozen=True, slots=True)
class Audited:
    """The audit that a Resume asked for is over."""

    halt_number: int
    is_clean: bool
    text: str


@dataclass(frozen=True, slots=True)
class Agreed:
    """The group agreed before `step`."""

    step: int
    agreement: Agreement


Event = (
    Offer
    | NewShares
    | Arm
    | Abort
    | Resume
    | RoundDone
    | RoundFailed
    | Withdraw
    | RaiseHalt
    | Audited
    | Agreed
)


# ---- effects ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Send a word to the controller."""

    word: Word


@dataclass(frozen=True, slots=True, eq=False)
class BeginRound:
    """Issue the transfers of round `number`, counted from 1, of this order."""

    order: Order
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Switch:
    """Put staged weights and new tables of all layers of the wave in use, before `step`."""

    order: Order
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class Discard:
    """Forget what was staged for this order."""

    order: Order


@dataclass(frozen=True, slots=True, eq=False)
class ApplyShares:
    """Put these dispatch tables in use."""

    name: ShareName
    shares: Shares


@dataclass(frozen=True, slots=True)
class Audit:
    """Verify every slot by digest and answer with Audited."""

    halt_number: int


@dataclass(frozen=True, slots=True)
class RouteAround:
    """Send no token to these slots where another replica is good, and fill the last one again."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RouteBack:
    """Use the ordered tables again."""


Effect = Say | BeginRound | Switch | Discard | ApplyShares | Audit | RouteAround | RouteBack
Step = tuple[RankState, tuple[Effect, ...]]


def initial_state(
    *,
    incarnation: Incarnation,
    ownership: Ownership,
    served: ShareName,
) -> RankState:
    """Start of one incarnation, with what it loaded."""
    return RankState(
        incarnation=incarnation,
        generation=Generation(0),
        ownership=ownership,
        served=served,
        high_mark=served.epoch,
        held=None,
        outcome=None,
        pending=None,
        halt=Halt(HaltStatus(0, is_active=False, reason="")),
        step=0,
    )


def status(state: RankState, *, is_idle: bool) -> RankStatus:
    """What Hello tells."""
    held = state.held
    return RankStatus(
        served=state.served,
        high_mark=state.high_mark,
        phase=held.phase if held else RankPhase.SERVING,
        held=held.name if held and held.phase is not RankPhase.DRAINING else None,
        outcome=state.outcome,
        halt=state.halt.status,
        step=state.step,
        is_idle=is_idle,
    )


def ballot(state: RankState, step: int) -> Ballot:
    """What this rank says at the agreement before `step`."""
    held = state.held
    accepted = armed = NO_WAVE
    if held and not held.withdrawn and held.phase is not RankPhase.DRAINING:
        accepted = held.name
        armed = held.name if held.phase is RankPhase.ARMED else NO_WAVE
    pending = state.pending if state.ownership is Ownership.REPLICATED else None
    return Ballot(
        step=step,
        accepted=accepted,
        armed=armed,
        revision=pending.name.revision if pending else Revision(0),
        shares=pending.name.digest if pending else NO_DIGEST,
        rounds_done=held.rounds_done if held and held.is_moving else NOT_MOVING,
        is_halted=state.halt.status.is_active,
        wish=state.halt.wish,
        bad_slot=max(state.halt.bad_slots, default=0),
    )
