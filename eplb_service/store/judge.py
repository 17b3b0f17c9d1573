"""What every store must refuse, whatever it writes to. Pure; raises the store's errors."""

from eplb_service.controller.records import EpochRecord, has_same_shape
from eplb_service.domain.errors import StoreConflict, UnknownDeployment, UnknownEpoch
from eplb_service.domain.ids import Epoch, Generation, Incarnation, Revision
from eplb_service.protocol.wave_state import WavePhase

HISTORY_KEPT = 1000
"""Lines of history kept per deployment."""
SETTLED_KEPT = 200
"""Settled epochs whose placements are kept per deployment; numbers are kept for ever."""

_FORWARD = (
    WavePhase.SPENT,
    WavePhase.ACCEPTED,
    WavePhase.MOVING,
    WavePhase.STAGED,
    WavePhase.MAY_COMMIT,
    WavePhase.COMMITTED,
    WavePhase.SETTLED,
)
_ENDS = (WavePhase.SETTLED, WavePhase.ABORTED)


def require_leader(*, acquired: Generation, writer: Generation) -> None:
    """Raise StoreConflict unless the writer holds the newest generation acquired."""
    if writer < acquired:
        raise StoreConflict(
            f"generation {writer} tried to write, but generation {acquired} has taken over; "
            "nothing was recorded, and this controller must step down"
        )
    if writer > acquired:
        raise StoreConflict(
            f"generation {writer} tried to write, but the store has given out no generation "
            f"above {acquired}; nothing was recorded. Was the store emptied or replaced?"
        )


def require_still_newest(*, acquired: Generation, after: Generation | None) -> None:
    """Raise StoreConflict where another controller has taken over since `after` was seen."""
    if after is not None and acquired != after:
        raise StoreConflict(
            f"generation {after} was to be followed, but generation {acquired} has followed it "
            "already; nothing was recorded, the one that was slower goes on standing by"
        )


def require_new_epoch(*, deployment: str, spent: Epoch, number: Epoch) -> None:
    """Raise StoreConflict unless the number is above every number spent."""
    if number <= spent:
        raise StoreConflict(
            f"epoch {number} of {deployment} cannot be spent: {spent} is the highest spent so far, "
            "and a number is never used twice; nothing was recorded"
        )


def is_spent_again(record: EpochRecord, *, before: EpochRecord, phase: WavePhase) -> bool:
    """Whether the number was spent on this very wave: the answer was lost, not the record.

    The digest covers content, base, incarnation and expiry, and only the leader gets here.
    """
    return phase is WavePhase.SPENT and before.wave == record.wave


def require_new_revision(*, epoch: Epoch, spent: Revision, number: Revision) -> None:
    """Raise StoreConflict unless the revision is above every one spent in its epoch."""
    if number <= spent:
        raise StoreConflict(
            f"revision {number} of epoch {epoch} cannot be spent: {spent} is the highest spent so "
            "far, and a number is never used twice; nothing was recorded"
        )


def require_newer_incarnation(
    *, deployment: str, known: Incarnation, incarnation: Incarnation
) -> None:
    """Raise StoreConflict if a newer incarnation of the rank group is on record."""
    if incarnation < known:
        raise StoreConflict(
            f"incarnation {incarnation} of {deployment} is older than {known}, which is on record; "
            "nothing was recorded"
        )


def start_is_news(first: EpochRecord, newest: EpochRecord) -> bool:
    """Whether a restarted group has another shape, so that no earlier placement fits it.

    A group of the same shape is led back to the last settled placement; a group of
    another shape (more ranks, other slots) starts anew, with numbers that go on.

    newest    the last settled record
    """
    return not has_same_shape(first.placement, newest.placement)


def is_progress(*, epoch: Epoch, before: WavePhase, after: WavePhase) -> bool:
    """Whether `after` is news; StoreConflict where an end would be undone or a step taken back."""
    if after is before:
        return False
    if after is WavePhase.ABORTED:
        is_next = before not in (*_ENDS, WavePhase.COMMITTED)
    else:
        is_next = before not in _ENDS and _FORWARD.index(after) > _FORWARD.index(before)
    if not is_next:
        raise StoreConflict(
            f"epoch {epoch} is recorded as {before} and cannot become {after}; nothing was recorded"
        )
    return True


def unknown_deployment(deployment: str) -> UnknownDeployment:
    """Build the error for a name that nobody registered."""
    return UnknownDeployment(
        f"no deployment {deployment!r} is on record; it appears when its first rank connects"
    )


def unknown_epoch(deployment: str, epoch: Epoch) -> UnknownEpoch:
    """Build the error for a number that was never spent."""
    return UnknownEpoch(f"epoch {epoch} of {deployment} was never spent; nothing was recorded")
