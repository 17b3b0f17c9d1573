"""Backup and restore of a SQLite file.

A backup is taken by SQLite's own backup call, so that it is one moment of the file, also while
a controller writes. It is a SQLite file itself, without a log beside it. A restore replaces all
rows in one transaction: it is done whole or not at all, and a controller that starts meanwhile
either sees it done or stops it.
"""

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from eplb_service.controller.records import Pulse
from eplb_service.domain.errors import InvalidRequest, StoreUnavailable
from eplb_service.domain.ids import Generation
from eplb_service.store import audits, rows
from eplb_service.store.copying import (
    Copied,
    Restoring,
    await_nobody_leads,
    next_generation,
    require_new,
    require_room,
    require_same,
    restored_now,
    told,
    unreadable,
)
from eplb_service.store.schema import connect, explained, version_of

WAIT_S = 10.0
"""Longest wait for another process's lock."""
TABLES = ("fence", "deployments", "epochs", "history", "audit")


NO_BACKUP = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite file",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
}
"""By SQLite's code: what is wrong with a file that was to be restored."""


def back_up(path: Path, file: Path) -> Copied:
    """Copy the store into a new file; raises StoreUnavailable or InvalidRequest."""
    require_new(file)
    if not path.exists():
        raise StoreUnavailable(f"store {path}: there is no such file; nothing was written")
    part = file.with_name(f"{file.name}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise InvalidRequest(
            f"cannot write {part}: {error.strerror}; nothing was written"
        ) from error
    try:
        copied = _copy_checked(path, part)
        part.rename(file)
    except sqlite3.Error as error:
        raise StoreUnavailable(
            f"store {path}: could not back it up: {explained(error, part)}", "nothing was written"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return copied


def restore(path: Path, restoring: Restoring) -> Copied:
    """Replace what the store holds by a backup; creates the store where there is none.

    Raises InvalidRequest for a file that cannot be restored or a store that holds data,
    StoreConflict where a controller leads.
    """
    file = restoring.file
    if not file.is_file():
        raise unreadable(file, "there is no such file")
    with tempfile.TemporaryDirectory(prefix="eplb-restore-") as folder:
        prepared = Path(folder) / "prepared.db"
        try:
            copied = _copy_checked(file, prepared)
        except sqlite3.Error as error:
            why = NO_BACKUP.get(error.sqlite_errorcode) or explained(error, prepared)
            raise unreadable(file, why) from error
        # Tables of an earlier release are led on in the copy, never in the backup.
        connect(prepared, WAIT_S).close()
        with closing(connect(path, WAIT_S)) as store:
            try:
                seen = await_nobody_leads(lambda: rows.pulse(store), restoring.watch_s)
                store.execute("ATTACH DATABASE ? AS backup", (str(prepared),))
                _replace_all(store, seen, restoring)
            except sqlite3.Error as error:
                raise StoreUnavailable(
                    f"store {path}: could not restore it: {explained(error, path)}",
                    "nothing was restored",
                ) from error
    return copied


def _copy_checked(source: Path, target: Path) -> Copied:
    """Copy one file into another, and look whether the copy is whole."""
    with closing(_open(source)) as old, closing(sqlite3.connect(target)) as new:
        if not version_of(old, source):
            raise StoreUnavailable(f"store {source}: the file holds no tables; nothing was written")
        old.backup(new)
        new.execute("PRAGMA journal_mode = DELETE")  # one file, no log beside it
        found = [str(line) for (line,) in new.execute("PRAGMA integrity_check")]
        if found != ["ok"]:
            raise StoreUnavailable(
                f"store {source}: it is damaged ({found[0]}, {len(found)} findings); nothing was "
                "written"
            )
        return _told(new)


def _open(path: Path) -> sqlite3.Connection:
    """Open a file that is there; never create one."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=WAIT_S)


def _told(file: sqlite3.Connection) -> Copied:
    has_audit = file.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'audit'").fetchone()
    entries = audits.newest_rows(file, 0, audits.AUDIT_KEPT) if has_audit[0] else ()
    return told(rows.deployment_names(file), entries[::-1])


def _replace_all(store: sqlite3.Connection, seen: Pulse, restoring: Restoring) -> None:
    """Replace every row, by one transaction that looks first whether it may."""
    store.execute("BEGIN IMMEDIATE")
    try:
        require_same(seen, rows.pulse(store))
        newest = next(iter(audits.newest_rows(store, 0, 1)), None)
        (num_audited,) = store.execute("SELECT count(*) FROM main.audit").fetchone()
        require_room(rows.deployment_names(store), num_audited, restoring)
        for table in TABLES:
            _replace(store, table)
        stored = Generation(store.execute("SELECT generation FROM backup.fence").fetchone()[0])
        generation = next_generation(seen, stored)
        store.execute("UPDATE main.fence SET generation = ?, beats = 0", (generation,))
        audits.add_row(store, restored_now(restoring, newest))
        store.execute("COMMIT")
    except BaseException:
        if store.in_transaction:
            store.execute("ROLLBACK")
        raise


def _replace(store: sqlite3.Connection, table: str) -> None:
    # By name: columns that an upgrade added stand elsewhere than in a new file.
    names = ", ".join(row[1] for row in store.execute(f"PRAGMA main.table_info({table})"))
    store.execute(f"DELETE FROM main.{table}")
    store.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM backup.{table}")
