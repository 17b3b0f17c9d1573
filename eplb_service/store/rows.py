"""Reading and writing the tables of schema.py, inside a transaction that somebody else opened."""

import sqlite3
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from eplb_service.controller.records import (
    DeploymentRecord,
    EpochEnd,
    EpochRecord,
    Freeze,
    HistoryEntry,
    Pulse,
)
from eplb_service.domain.ids import Epoch, Generation, Revision
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store.codec import decode, encode
from eplb_service.store.judge import HISTORY_KEPT, SETTLED_KEPT, unknown_deployment, unknown_epoch

RECORD: Final = TypeAdapter(DeploymentRecord)
FREEZE: Final = TypeAdapter(Freeze)
RANKS: Final = TypeAdapter(tuple[int, ...])

_EPOCH = (
    "SELECT epoch, phase, reason, step, at_s, body FROM epochs "
    "WHERE deployment = ? AND body IS NOT NULL AND "
)
_ONE = _EPOCH + "epoch = ?"
_LAST = _EPOCH + "epoch > ? ORDER BY epoch DESC LIMIT 1"
_LAST_SERVED = (
    _EPOCH + "epoch > ? AND phase IN ('settled', 'committed') ORDER BY epoch DESC LIMIT 1"
)
_SETTLED_BEFORE = _EPOCH + "epoch < ? AND phase = 'settled' ORDER BY epoch DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class DeploymentRow:
    """One deployment without its epochs."""

    record: DeploymentRecord
    freeze: Freeze | None
    settings: str
    start: EpochRecord | None
    """What a group of another shape restarted into; see judge.start_is_news."""
    start_after: Epoch
    """Epochs up to this one are of an earlier shape."""
    drained: tuple[int, ...]


def generation(connection: sqlite3.Connection) -> Generation:
    """The newest generation acquired."""
    return Generation(connection.execute("SELECT generation FROM fence").fetchone()[0])


def next_generation(connection: sqlite3.Connection) -> Generation:
    """Fence every generation so far."""
    connection.execute("UPDATE fence SET generation = generation + 1, beats = 0")
    return generation(connection)


def beat(connection: sqlite3.Connection) -> None:
    """Count a beat of the newest generation."""
    connection.execute("UPDATE fence SET beats = beats + 1")


def pulse(connection: sqlite3.Connection) -> Pulse:
    """The newest generation and its beats."""
    newest, beats = connection.execute("SELECT generation, beats FROM fence").fetchone()
    return Pulse(Generation(newest), beats)


def deployment_names(connection: sqlite3.Connection) -> tuple[str, ...]:
    """All deployments, by name."""
    found = connection.execute("SELECT name FROM deployments ORDER BY name")
    return tuple(str(name) for (name,) in found)


def deployment(connection: sqlite3.Connection, name: str) -> DeploymentRow | None:
    """One deployment, or None."""
    found: tuple[str, str | None, str, bytes | None, int, str] | None = connection.execute(
        "SELECT record, freeze, settings, start, start_after, drained FROM deployments "
        "WHERE name = ?",
        (name,),
    ).fetchone()
    if found is None:
        return None
    record, freeze, settings, start, start_after, drained = found
    return DeploymentRow(
        RECORD.validate_json(record),
        FREEZE.validate_json(freeze) if freeze else None,
        settings,
        decode(start, what=f"the start of {name}") if start else None,
        Epoch(start_after),
        RANKS.validate_json(drained),
    )


def write_deployment(connection: sqlite3.Connection, record: DeploymentRecord) -> None:
    """Insert a deployment, or renew its record."""
    connection.execute(
        "INSERT INTO deployments (name, record) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET record = excluded.record",
        (record.identity.name, RECORD.dump_json(record).decode()),
    )


def write_start(
    connection: sqlite3.Connection, name: str, start: EpochRecord, after: Epoch
) -> None:
    """Begin anew with another shape; numbers go on from `after`."""
    connection.execute(
        "UPDATE deployments SET start = ?, start_after = ? WHERE name = ?",
        (encode(start), after, name),
    )


def write_freeze(connection: sqlite3.Connection, name: str, freeze: Freeze | None) -> None:
    """Set or lift a freeze."""
    text = FREEZE.dump_json(freeze).decode() if freeze else None
    changed = connection.execute("UPDATE deployments SET freeze = ? WHERE name = ?", (text, name))
    _require_changed(changed, name)


def write_settings(connection: sqlite3.Connection, name: str, settings: str) -> None:
    """Replace the operator's overrides."""
    changed = connection.execute(
        "UPDATE deployments SET settings = ? WHERE name = ?", (settings, name)
    )
    _require_changed(changed, name)


def write_drained(connection: sqlite3.Connection, name: str, ranks: tuple[int, ...]) -> None:
    """Replace the set of drained ranks."""
    text = RANKS.dump_json(ranks).decode()
    changed = connection.execute("UPDATE deployments SET drained = ? WHERE name = ?", (text, name))
    _require_changed(changed, name)


def write_history(connection: sqlite3.Connection, name: str, entry: HistoryEntry) -> None:
    """Add a line of history and drop those that are too old to keep."""
    if deployment(connection, name) is None:
        raise unknown_deployment(name)
    connection.execute(
        "INSERT INTO history (deployment, at_s, kind, plan_id, epoch, text, who) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (name, entry.at_s, entry.kind, entry.plan_id, entry.epoch, entry.text, entry.who),
    )
    connection.execute(
        "DELETE FROM history WHERE deployment = ? AND number <= (SELECT number FROM history "
        "WHERE deployment = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
        (name, name, HISTORY_KEPT),
    )


def history(connection: sqlite3.Connection, name: str, limit: int) -> tuple[HistoryEntry, ...]:
    """Newest first."""
    found = connection.execute(
        "SELECT at_s, kind, plan_id, epoch, text, who FROM history WHERE deployment = ? "
        "ORDER BY number DESC LIMIT ?",
        (name, limit),
    )
    return tuple(HistoryEntry(*row) for row in found)


def highest_epoch(connection: sqlite3.Connection, name: str) -> Epoch | None:
    """The highest number spent, None before the first."""
    found = connection.execute("SELECT max(epoch) FROM epochs WHERE deployment = ?", (name,))
    number: int | None = found.fetchone()[0]
    return None if number is None else Epoch(number)


def write_epoch(
    connection: sqlite3.Connection, name: str, record: EpochRecord, phase: WavePhase
) -> None:
    """Write a number down as spent, with everything that its orders need."""
    connection.execute(
        "INSERT INTO epochs (deployment, epoch, phase, reason, step, at_s, body) "
        "VALUES (?, ?, ?, '', 0, ?, ?)",
        (name, record.wave.epoch, phase, record.spent_at_s, encode(record)),
    )


def forget_aborted(connection: sqlite3.Connection, name: str) -> None:
    """Drop the bodies of epochs that were never served and can no longer be open."""
    connection.execute(
        "UPDATE epochs SET body = NULL WHERE deployment = ? AND phase = 'aborted' "
        "AND body IS NOT NULL AND epoch < (SELECT max(epoch) FROM epochs WHERE deployment = ?)",
        (name, name),
    )


def write_number(connection: sqlite3.Connection, name: str, record: EpochRecord) -> None:
    """Write a number down as spent if it is not yet, without its placement."""
    connection.execute(
        "INSERT OR IGNORE INTO epochs (deployment, epoch, phase, reason, step, at_s) "
        "VALUES (?, ?, 'settled', '', 0, ?)",
        (name, record.wave.epoch, record.spent_at_s),
    )


def phase_of(connection: sqlite3.Connection, name: str, epoch: Epoch) -> WavePhase:
    """How far an epoch came; raises UnknownEpoch if its number was never spent."""
    found = connection.execute(
        "SELECT phase FROM epochs WHERE deployment = ? AND epoch = ?", (name, epoch)
    ).fetchone()
    if found is None:
        raise unknown_epoch(name, epoch)
    return WavePhase(found[0])


def write_end(connection: sqlite3.Connection, name: str, end: EpochEnd) -> None:
    """Record how far an epoch came; forget placements that are too old to return to."""
    connection.execute(
        "UPDATE epochs SET phase = ?, reason = ?, step = ?, at_s = ? "
        "WHERE deployment = ? AND epoch = ?",
        (end.phase, end.reason, end.step, end.at_s, name, end.epoch),
    )
    connection.execute(
        "UPDATE epochs SET body = NULL WHERE deployment = ? AND body IS NOT NULL AND epoch <= "
        "(SELECT epoch FROM epochs WHERE deployment = ? AND phase = 'settled' "
        "ORDER BY epoch DESC LIMIT 1 OFFSET ?)",
        (name, name, SETTLED_KEPT),
    )


def revision(connection: sqlite3.Connection, name: str, epoch: Epoch) -> Revision:
    """The highest revision spent in an epoch; raises UnknownEpoch."""
    found = connection.execute(
        "SELECT highest_revision FROM epochs WHERE deployment = ? AND epoch = ?", (name, epoch)
    ).fetchone()
    if found is None:
        raise unknown_epoch(name, epoch)
    return Revision(found[0])


def write_revision(
    connection: sqlite3.Connection, name: str, epoch: Epoch, number: Revision
) -> None:
    """Write a revision's number down as spent."""
    connection.execute(
        "UPDATE epochs SET highest_revision = ? WHERE deployment = ? AND epoch = ?",
        (number, name, epoch),
    )


@dataclass(frozen=True, slots=True, eq=False)
class StoredEpoch:
    """One spent number whose placement is still kept."""

    record: EpochRecord
    end: EpochEnd


def epoch(connection: sqlite3.Connection, name: str, number: Epoch) -> StoredEpoch | None:
    """One epoch by number."""
    return _stored(connection, _ONE, name, number)


def last_epoch(connection: sqlite3.Connection, name: str, *, after: Epoch) -> StoredEpoch | None:
    """The highest number spent, if it is above `after`."""
    return _stored(connection, _LAST, name, after)


def last_served(connection: sqlite3.Connection, name: str, *, after: Epoch) -> StoredEpoch | None:
    """The newest epoch above `after` that is settled or committed."""
    return _stored(connection, _LAST_SERVED, name, after)


def settled_before(connection: sqlite3.Connection, name: str, number: Epoch) -> StoredEpoch | None:
    """The newest settled epoch below a number."""
    return _stored(connection, _SETTLED_BEFORE, name, number)


def _stored(
    connection: sqlite3.Connection, query: str, name: str, number: Epoch
) -> StoredEpoch | None:
    row: tuple[int, str, str, int, float, bytes] | None = connection.execute(
        query, (name, number)
    ).fetchone()
    if row is None:
        return None
    found, phase, reason, step, at_s, body = row
    return StoredEpoch(
        decode(body, what=f"epoch {found} of {name}"),
        EpochEnd(Epoch(found), WavePhase(phase), reason, step, at_s),
    )


def _require_changed(cursor: sqlite3.Cursor, name: str) -> None:
    if cursor.rowcount != 1:
        raise unknown_deployment(name)
