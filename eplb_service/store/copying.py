"""What backups of both kinds of store share: who may restore, and what is told of it.

A store is restored only while nobody leads. The generation is then set above every one that the
store and the backup have given out, so that a leader that merely slept is fenced when it wakes;
numbers that were spent since the backup come back with the ranks' Hellos.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eplb_service.controller.records import Pulse
from eplb_service.domain.audit import AuditEntry, Happened, cut, first_break
from eplb_service.domain.errors import InvalidRequest, StoreConflict
from eplb_service.domain.ids import Generation

LOOK_S = 0.1
"""Between two looks at the leader's beats, at most."""


@dataclass(frozen=True, slots=True)
class Restoring:
    """What an operator asks for.

    who         for the audit
    is_forced   whether data that the store holds may be replaced
    watch_s     without a beat for so long nobody leads
    """

    file: Path
    who: str
    is_forced: bool
    watch_s: float


@dataclass(frozen=True, slots=True)
class Copied:
    """What a backup holds."""

    deployments: tuple[str, ...]
    num_audited: int
    chain_break: str
    """Where the audit's chain is broken; empty where it holds."""


def told(deployments: Sequence[str], entries: Sequence[AuditEntry]) -> Copied:
    """Describe a copy by its deployments and its audit, oldest entry first."""
    return Copied(tuple(sorted(deployments)), len(entries), first_break(entries))


def await_nobody_leads(look: Callable[[], Pulse], watch_s: float) -> Pulse:
    """Watch the beats for a while; raises StoreConflict where one comes.

    Returns what was seen, which must be so still when the store is written.
    """
    seen = look()
    if not seen.generation:
        return seen
    give_up_at = time.monotonic() + watch_s
    while (left_s := give_up_at - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left_s))
        require_same(seen, look())
    return seen


def require_same(seen: Pulse, now: Pulse) -> None:
    """Raise StoreConflict where a leader has given a sign of life."""
    if now != seen:
        raise led(now)


def led(now: Pulse) -> StoreConflict:
    """Build the error for a store that a controller leads on."""
    return StoreConflict(
        f"generation {now.generation} leads on this store; end that controller and those that "
        "stand by, then restore again; nothing was restored"
    )


def require_room(held: Sequence[str], num_audited: int, restoring: Restoring) -> None:
    """Raise InvalidRequest where the store holds data and nobody said that it may go."""
    if (held or num_audited) and not restoring.is_forced:
        raise InvalidRequest(
            f"the store holds {len(held)} deployments ({', '.join(sorted(held)) or 'none'}) and "
            f"{num_audited} audit entries; back it up, then add --force to replace all of it; "
            "nothing was restored"
        )


def next_generation(seen: Pulse, stored: Generation) -> Generation:
    """Return the generation to write: above all that store and backup have given out."""
    return Generation(max(seen.generation, stored) + 1)


def restored_now(restoring: Restoring, replaced: AuditEntry | None) -> Happened:
    """Say for the audit what was done.

    replaced    the newest entry of the audit that is replaced
    """
    what = f"from {restoring.file.name}"
    if replaced:
        what += f"; replaced an audit up to entry {replaced.number}, {replaced.digest}"
    return Happened(time.time(), cut(restoring.who), "restore", "", cut(what), "", "done")


def require_new(file: Path) -> None:
    """Raise InvalidRequest where a backup would replace something."""
    if file.exists():
        raise InvalidRequest(f"{file} exists; name a file that does not, nothing was written")


def unreadable(file: Path, why: object) -> InvalidRequest:
    """Build the error for a file that cannot be restored."""
    return InvalidRequest(f"{file} cannot be restored: {why}; nothing was restored")
