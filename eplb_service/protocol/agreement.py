"""The small vector that ranks reduce before every `agree_every`-th step.

Each rank casts a Ballot; one elementwise minimum of all packed forms
gives every rank the same Agreement. Maxima travel as minima of negated values, so
one collective is enough. The result is the same everywhere, so it may decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from eplb_service.domain.ids import NO_DIGEST, Digest, Epoch, Revision
from eplb_service.protocol.messages import WaveName

NO_WAVE = WaveName(Epoch(0), NO_DIGEST)


class HaltWish(IntEnum):
    """What a rank wants of the halt."""

    RAISE = 0
    NONE = 1
    CLEAR = 2


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one rank says at one agreement."""

    step: int
    accepted: WaveName
    armed: WaveName
    revision: Revision
    shares: Digest
    """Pending revision of the shares, where tokens are replicated; else 0 and NO_DIGEST."""
    rounds_done: int
    """Transfer rounds finished; a large number where no order is moving."""
    is_halted: bool
    wish: HaltWish
    bad_slot: int = 0
    """Number of a slot that this rank found not to hold what it should; 0 where none."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks know after the reduction."""

    is_in_step: bool
    """Whether every rank agreed before the same step."""
    accepted: WaveName
    """The wave that every rank has accepted, or NO_WAVE."""
    armed: WaveName
    """The wave for which every rank is armed, or NO_WAVE."""
    revision: Revision
    shares: Digest
    """The share revision that every rank has pending, or NO_DIGEST."""
    rounds_done: int
    is_any_halted: bool
    is_any_raising: bool
    is_all_clearing: bool
    bad_slot: int = 0
    """The highest that any rank named; 0 where none did."""


NOT_MOVING = 1 << 40


def pack(ballot: Ballot) -> tuple[int, ...]:
    """Integers whose elementwise minimum over all ranks unpack() understands."""
    paired = (
        ballot.step,
        ballot.accepted.epoch,
        ballot.accepted.digest,
        ballot.armed.epoch,
        ballot.armed.digest,
        ballot.revision,
        ballot.shares,
    )
    single = (
        ballot.rounds_done,
        -int(ballot.is_halted),
        int(ballot.wish),
        -ballot.bad_slot,
    )
    return (*paired, *(-value for value in paired), *single)


NUM_PAIRED = 7
VECTOR_LENGTH = 2 * NUM_PAIRED + 4


def unpack(minima: Sequence[int]) -> Agreement:
    """Read the elementwise minimum of all packed ballots."""
    low, high = minima[:NUM_PAIRED], [-value for value in minima[NUM_PAIRED : 2 * NUM_PAIRED]]
    rounds_done, halted, wish, bad_slot = minima[2 * NUM_PAIRED :]
    same = [a == b for a, b in zip(low, high, strict=True)]
    accepted = WaveName(Epoch(low[1]), Digest(low[2])) if same[1] and same[2] else NO_WAVE
    armed = WaveName(Epoch(low[3]), Digest(low[4])) if same[3] and same[4] else NO_WAVE
    has_shares = same[5] and same[6]
    return Agreement(
        is_in_step=same[0],
        accepted=accepted,
        armed=armed,
        revision=Revision(low[5] if has_shares else 0),
        shares=Digest(low[6]) if has_shares else NO_DIGEST,
        rounds_done=rounds_done,
        is_any_halted=halted < 0,
        is_any_raising=wish == HaltWish.RAISE,
        is_all_clearing=wish == HaltWish.CLEAR,
        bad_slot=-bad_slot,
    )


def reduce_ballots(ballots: Sequence[Ballot]) -> Agreement:
    """Agree without a network: what the collective computes, for simulator and tests."""
    return unpack([min(column) for column in zip(*map(pack, ballots), strict=True)])
