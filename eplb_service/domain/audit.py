"""The audit: who changed what, when, why and with what result, as a chain of digests.

Each entry's digest covers its content and the digest before it, so that an entry cannot be
changed, taken out or put in without changing every digest after it. Whoever may rewrite the whole
store can still rewrite the whole chain: hold its head against one that was noted elsewhere.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

BEGINNING = "0" * 64
"""What the first entry follows."""
LONGEST = 500
"""Characters of one field."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing that was asked for."""

    at_s: float
    """Unix time."""
    who: str
    verb: str
    deployment: str
    what: str
    why: str
    result: str
    """begun, done, or the code and text of the failure."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One link of the chain."""

    number: int
    """From 1, without gaps."""
    happened: Happened
    previous: str
    """Digest of the entry before it."""
    digest: str
    """SHA-256, in hexadecimal, of all of the above."""


def follow(previous: AuditEntry | None, happened: Happened) -> AuditEntry:
    """Return the entry that comes after another; None: the first."""
    number = previous.number + 1 if previous else 1
    before = previous.digest if previous else BEGINNING
    return AuditEntry(number, happened, before, _digest(number, happened, before))


def cut(text: str) -> str:
    """Return a field as it is kept."""
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."


def first_break(entries: Sequence[AuditEntry]) -> str:
    """Say where a chain, oldest entry first, is broken; empty where it holds.

    Its beginning may have been dropped for age; what is there must hold together.
    """
    before: AuditEntry | None = None
    for entry in entries:
        number = entry.number
        if entry.digest != _digest(number, entry.happened, entry.previous):
            return f"entry {number} was changed: its digest is not that of its content"
        if before is None:
            if number == 1 and entry.previous != BEGINNING:
                return "entry 1 follows another, which is gone"
        elif number != before.number + 1:
            return f"entry {before.number} is followed by entry {number}: what was between is gone"
        elif entry.previous != before.digest:
            return f"entry {number} does not follow entry {before.number} as that stands now"
        before = entry
    return ""


def _digest(number: int, happened: Happened, previous: str) -> str:
    content = json.dumps([number, *astuple(happened), previous], ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()
