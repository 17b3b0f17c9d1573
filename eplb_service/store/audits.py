"""The audit in each kind of store: one chain for all controllers that share it."""

import sqlite3
from typing import TYPE_CHECKING, Final, cast

from pydantic import TypeAdapter

from eplb_service.domain.audit import AuditEntry, Happened, follow

if TYPE_CHECKING:
    from eplb_service.store.redis_wire import Wire

AUDIT_KEPT = 100_000
"""Entries kept; older ones are dropped."""
KEY = "{eplb}:audit"
ENTRY: Final = TypeAdapter(AuditEntry)

APPEND = """
if (redis.call('LINDEX', KEYS[1], 0) or '') ~= ARGV[1] then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[2])
redis.call('LTRIM', KEYS[1], 0, tonumber(ARGV[3]) - 1)
return 1
"""
"""Adds an entry where the one that it follows is still the newest. KEYS: the list."""


class AuditChain:
    """The chain in this process's memory."""

    def __init__(self) -> None:
        self._entries: list[AuditEntry] = []

    def add(self, happened: Happened) -> AuditEntry:
        """Add an entry."""
        entry = follow(self._entries[-1] if self._entries else None, happened)
        self._entries.append(entry)
        del self._entries[:-AUDIT_KEPT]
        return entry

    def newest(self, below: int, limit: int) -> tuple[AuditEntry, ...]:
        """Return entries below a number (0: all), the newest first."""
        found = (e for e in reversed(self._entries) if not below or e.number < below)
        return tuple(entry for entry, _ in zip(found, range(max(0, limit)), strict=False))


def add_row(connection: sqlite3.Connection, happened: Happened) -> AuditEntry:
    """Add an entry to a file, inside a transaction that no other writer shares."""
    found = newest_rows(connection, 0, 1)
    entry = follow(found[0] if found else None, happened)
    connection.execute(
        "INSERT INTO audit (number, body) VALUES (?, ?)",
        (entry.number, ENTRY.dump_json(entry).decode()),
    )
    connection.execute("DELETE FROM audit WHERE number <= ?", (entry.number - AUDIT_KEPT,))
    return entry


def newest_rows(connection: sqlite3.Connection, below: int, limit: int) -> tuple[AuditEntry, ...]:
    """Return entries of a file below a number (0: all), the newest first."""
    rows = connection.execute(
        "SELECT body FROM audit WHERE ? = 0 OR number < ? ORDER BY number DESC LIMIT ?",
        (below, below, max(0, limit)),
    )
    return tuple(ENTRY.validate_json(body) for (body,) in rows)


def push(wire: "Wire", happened: Happened) -> AuditEntry | None:
    """Add an entry at a server; None where another writer was faster."""
    newest = cast("bytes | None", wire.ask("LINDEX", KEY, 0)) or b""
    entry = follow(ENTRY.validate_json(newest) if newest else None, happened)
    pushed = wire.ask("EVAL", APPEND, 1, KEY, newest, ENTRY.dump_json(entry), AUDIT_KEPT)
    return entry if pushed else None


def newest_lines(wire: "Wire", below: int, limit: int) -> tuple[AuditEntry, ...]:
    """Return entries of a server below a number (0: all), the newest first."""
    if limit < 1:
        return ()
    head = cast("bytes | None", wire.ask("LINDEX", KEY, 0))
    if head is None:
        return ()
    newest = ENTRY.validate_json(head).number
    # Numbers have no gaps, and entries that come meanwhile only push these further down.
    first = max(0, newest - below + 1) if below else 0
    lines = cast("list[bytes]", wire.ask("LRANGE", KEY, first, first + limit - 1))
    found = (ENTRY.validate_json(line) for line in lines)
    return tuple(entry for entry in found if not below or entry.number < below)
