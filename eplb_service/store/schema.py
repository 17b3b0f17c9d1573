"""The SQLite file: its tables, its version, and how it is opened.

WAL, so that readers never wait for the writer; synchronous=FULL, so that what was
acknowledged survives a loss of power.
"""

import sqlite3
from pathlib import Path
from shutil import disk_usage
from time import monotonic, sleep

from eplb_service.domain.errors import StoreUnavailable

APPLICATION_ID = 0x45504C42
"""The letters EPLB: marks a SQLite file as ours."""
VERSION = 5
LOOK_S = 0.01
FULL = "the disk is full; make room on it"
LEAST_ROOM_BYTES = 1 << 16
"""A disk with less has no room for a write-ahead log and its index."""
PRIMARY_CODE = 0xFF
"""SQLite puts details of an error into the bits above."""

TABLES = """
CREATE TABLE fence (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    generation INTEGER NOT NULL,
    beats INTEGER NOT NULL DEFAULT 0
);
INSERT INTO fence (only_row, generation) VALUES (1, 0);
CREATE TABLE deployments (
    name TEXT PRIMARY KEY,
    record TEXT NOT NULL,
    freeze TEXT,
    settings TEXT NOT NULL DEFAULT '{}',
    start BLOB,
    start_after INTEGER NOT NULL DEFAULT -1,
    drained TEXT NOT NULL DEFAULT '[]'
);
CREATE TABLE epochs (
    deployment TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    phase TEXT NOT NULL,
    reason TEXT NOT NULL,
    step INTEGER NOT NULL,
    at_s REAL NOT NULL,
    highest_revision INTEGER NOT NULL DEFAULT 0,
    body BLOB,
    PRIMARY KEY (deployment, epoch)
);
CREATE TABLE history (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    deployment TEXT NOT NULL,
    at_s REAL NOT NULL,
    kind TEXT NOT NULL,
    plan_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    text TEXT NOT NULL,
    who TEXT NOT NULL DEFAULT ''
);
CREATE INDEX history_by_deployment ON history (deployment, number);
CREATE TABLE audit (number INTEGER PRIMARY KEY, body TEXT NOT NULL);
"""
UPGRADES = {
    1: "ALTER TABLE deployments ADD COLUMN drained TEXT NOT NULL DEFAULT '[]'",
    2: "ALTER TABLE fence ADD COLUMN beats INTEGER NOT NULL DEFAULT 0",
    3: "CREATE TABLE audit (number INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    4: "ALTER TABLE history ADD COLUMN who TEXT NOT NULL DEFAULT ''",
}
"""By version of the tables: what makes them those of the next one."""


def connect(path: Path, wait_s: float) -> sqlite3.Connection:
    """Open the file, creating it where there is none; raises StoreUnavailable if it is not ours.

    wait_s    longest wait for another process's lock
    """
    try:
        connection = sqlite3.connect(path, timeout=wait_s, isolation_level=None)
        try:
            _prepare(connection, path, give_up_at=monotonic() + wait_s)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise StoreUnavailable(
            f"store {path}: could not open it: {explained(error, path)}"
        ) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, *, give_up_at: float) -> None:
    connection.execute("BEGIN")  # one look: another process may just be making the tables
    is_made = version_of(connection, path) == VERSION
    connection.execute("COMMIT")
    mode = _write_ahead(connection, give_up_at)
    if mode != "wal":
        raise StoreUnavailable(
            f"store {path}: its file system does not carry a write-ahead log (journal mode "
            f"{mode}); put the file on a local disk"
        )
    connection.execute("PRAGMA synchronous = FULL")
    if not is_made:
        _make(connection, path)


def _write_ahead(connection: sqlite3.Connection, give_up_at: float) -> str:
    """Ask for a write-ahead log; return the journal mode that the file has then.

    SQLite itself does not wait here: it reads the file's header under a shared lock first, and two
    that make the same file would wait for each other. Between these looks we hold no lock.
    """
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            is_locked = error.sqlite_errorcode & PRIMARY_CODE == sqlite3.SQLITE_BUSY
            if not is_locked or monotonic() >= give_up_at:
                raise
        else:
            return mode
        sleep(LOOK_S)


def _make(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables, or lead those of an earlier release on; all steps or none."""
    connection.execute("BEGIN IMMEDIATE")
    version = version_of(connection, path)
    if version != VERSION:  # another process may have been faster
        steps = [UPGRADES[made] for made in range(version, VERSION)] if version else []
        for statement in steps or TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the tables, 0 in an empty file.

    Raises StoreUnavailable if the file is of another program or of a newer release.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    num_tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if num_tables and application != APPLICATION_ID:
        raise StoreUnavailable(
            f"store {path}: this is a database of another program; name a file of its own in "
            "store.url, nothing was changed"
        )
    if version > VERSION:
        raise StoreUnavailable(
            f"store {path}: it was written by a newer release (tables version {version}, this one "
            f"knows up to {VERSION}); run that release again, nothing was changed"
        )
    return version


def explained(error: sqlite3.Error, path: Path) -> str:
    """Say in an operator's words what SQLite complains of."""
    code = error.sqlite_errorcode if hasattr(error, "sqlite_errorcode") else 0
    match code & PRIMARY_CODE:
        case sqlite3.SQLITE_FULL:
            return FULL
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN if _is_full(path):
            return FULL
        case sqlite3.SQLITE_IOERR:
            return f"the disk failed ({error})"
        case sqlite3.SQLITE_CORRUPT:
            return (
                "the file is damaged; move it away and put a backup in its place with "
                "`eplb-service store restore`"
            )
        case sqlite3.SQLITE_NOTADB:
            return "the file is not a database; name another in store.url, nothing was changed"
        case sqlite3.SQLITE_CANTOPEN:
            return "the file cannot be opened; its folder must exist and be writable"
        case sqlite3.SQLITE_READONLY:
            return "the file or its folder is read-only"
        case sqlite3.SQLITE_BUSY:
            return "another process has locked it"
        case _:
            return str(error)


def _is_full(path: Path) -> bool:
    """Whether there is no room; SQLite calls some of its writes that found none failures."""
    try:
        return disk_usage(path.parent).free < LEAST_ROOM_BYTES
    except OSError:
        return False  # it is another complaint then
