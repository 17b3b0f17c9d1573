"""The audit is one chain, whoever writes it, and whoever tampers with it breaks it."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from eplb_service.domain.audit import AuditEntry, Happened, first_break, follow
from eplb_service.store import SqliteStore
from eplb_service.store import audits as kept
from tests.store.conftest import Open, Opened


def happened(number: int) -> Happened:
    return Happened(float(number), "eplb://operator/otto", "freeze", "m", f"{number}", "", "done")


async def oldest_first(store: Opened) -> list[AuditEntry]:
    return list(reversed(await store.audited(0, 1000)))


async def test_entries_are_chained_and_told_newest_first(store: Opened) -> None:
    assert await store.audited(0, 5) == ()
    written = [await store.audit(happened(n)) for n in range(1, 8)]
    assert [entry.number for entry in written] == list(range(1, 8))
    assert await store.audited(0, 3) == tuple(written[:-4:-1])
    assert await store.audited(4, 2) == (written[2], written[1])
    assert await store.audited(1, 9) == ()
    assert await store.audited(0, 0) == ()
    assert first_break(written) == ""


async def test_several_controllers_write_one_chain(open_again: Open) -> None:
    stores = [open_again() for _ in range(3)]
    await asyncio.gather(*(s.audit(happened(n)) for n in range(8) for s in stores))
    entries = await oldest_first(stores[0])
    assert [entry.number for entry in entries] == list(range(1, 25))
    assert first_break(entries) == ""
    assert sorted(e.happened.what for e in entries) == sorted([f"{n}" for n in range(8)] * 3)


async def test_the_oldest_entries_are_dropped_and_the_rest_still_holds(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "AUDIT_KEPT", 5)
    for number in range(9):
        await store.audit(happened(number))
    entries = await oldest_first(store)
    assert [entry.number for entry in entries] == [5, 6, 7, 8, 9]
    assert first_break(entries) == ""


def changed(file: sqlite3.Connection) -> None:
    (body,) = file.execute("SELECT body FROM audit WHERE number = 3").fetchone()
    tree = json.loads(body)
    tree["happened"]["who"] = "eplb://operator/eve"
    file.execute("UPDATE audit SET body = ? WHERE number = 3", (json.dumps(tree),))


def taken_out(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM audit WHERE number = 3")


def first_taken_out(file: sqlite3.Connection) -> None:
    """Entry 2 is put in the place of entry 1."""
    file.execute("DELETE FROM audit WHERE number = 1")
    (body,) = file.execute("SELECT body FROM audit WHERE number = 2").fetchone()
    tree = json.loads(body)
    moved = follow(None, Happened(**tree["happened"]))
    tree |= {"number": 1, "digest": moved.digest, "previous": moved.previous}
    file.execute("UPDATE audit SET number = 1, body = ? WHERE number = 2", (json.dumps(tree),))


def redone(file: sqlite3.Connection) -> None:
    """Entry 3 is changed and given the digest of its new content; entry 4 still knows the old."""
    (body,) = file.execute("SELECT body FROM audit WHERE number = 2").fetchone()
    before = kept.ENTRY.validate_json(body)
    forged = follow(before, happened(999))
    text = kept.ENTRY.dump_json(forged).decode()
    file.execute("UPDATE audit SET body = ? WHERE number = 3", (text,))


def swapped(file: sqlite3.Connection) -> None:
    bodies = dict(file.execute("SELECT number, body FROM audit WHERE number IN (3, 4)").fetchall())
    file.execute("UPDATE audit SET body = ? WHERE number = 3", (bodies[4],))
    file.execute("UPDATE audit SET body = ? WHERE number = 4", (bodies[3],))


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (changed, "entry 3 was changed"),
        (taken_out, "entry 2 is followed by entry 4: what was between is gone"),
        (first_taken_out, "entry 1 is followed by entry 3"),
        (redone, "entry 4 does not follow entry 3 as that stands now"),
        (swapped, "entry 2 is followed by entry 4"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_whatever_is_tampered_with_is_found(
    tmp_path: Path, tamper: Callable[[sqlite3.Connection], None], says: str
) -> None:
    path = tmp_path / "eplb.db"
    store = SqliteStore(path)
    for number in range(1, 6):
        await store.audit(happened(number))
    with sqlite3.connect(path) as file:
        tamper(file)
    file.close()
    assert says in first_break(await oldest_first(store))
    store.close()


async def test_a_file_of_an_earlier_release_is_led_on(tmp_path: Path) -> None:
    """Version 1 had neither drained ranks, nor beats, nor an audit; what it held is still there."""
    path = tmp_path / "eplb.db"
    store = SqliteStore(path)
    generation = await store.acquire()
    store.close()
    with sqlite3.connect(path) as file:
        file.execute("ALTER TABLE history DROP COLUMN who")
        file.execute("DROP TABLE audit")
        file.execute("ALTER TABLE deployments DROP COLUMN drained")
        file.execute("ALTER TABLE fence DROP COLUMN beats")
        file.execute("PRAGMA user_version = 1")
    file.close()
    store = SqliteStore(path)
    assert (await store.audit(happened(1))).number == 1
    assert await store.deployments() == ()
    assert await store.acquire() == generation + 1
    store.close()
