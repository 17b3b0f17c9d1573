"""Trouble with the file is a named failure that says which file and what was being written."""

import asyncio
import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from eplb_service.controller.records import DrainNote, Pulse
from eplb_service.domain.errors import StoreUnavailable
from eplb_service.domain.ids import Epoch
from eplb_service.store import SqliteStore
from eplb_service.store.schema import VERSION
from tests.store.ledger import NAME, assert_same, deployment, registered, start, wave

NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "eplb.db"


@contextmanager
def opened(path: Path, *, deadline_s: float = 5.0) -> Generator[SqliteStore]:
    store = SqliteStore(path, deadline_s=deadline_s)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def held_by_somebody_else(path: Path) -> Generator[None]:
    """Another program keeps the file's write lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def without_privileges() -> Generator[None]:
    """File permissions bind root too while it is somebody else."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(me)


async def test_the_file_is_written_ahead_and_fully_synced(file: Path) -> None:
    with opened(file) as store:
        await store.acquire()
        modes = await store._writes.run(  # pyright: ignore[reportPrivateUsage]
            "look",
            lambda f: (
                f.execute("PRAGMA journal_mode").fetchone()[0],
                f.execute("PRAGMA synchronous").fetchone()[0],
            ),
        )
    assert modes == ("wal", 2)


async def test_a_lock_held_beyond_the_deadline_is_told_and_nothing_is_written(file: Path) -> None:
    with opened(file, deadline_s=0.2) as store:
        generation = await store.acquire()
        await store.register(generation, deployment(), start())
        with (
            held_by_somebody_else(file),
            pytest.raises(StoreUnavailable, match=r"eplb\.db: could not spend epoch 1 of tiny"),
        ):
            await store.spend(generation, NAME, wave(1))
        await store.spend(generation, NAME, wave(1))


async def test_a_fresh_file_that_another_is_just_making_is_waited_for(file: Path) -> None:
    with opened(file, deadline_s=5.0) as store:
        with held_by_somebody_else(file):
            acquiring = asyncio.ensure_future(store.acquire())
            done, _ = await asyncio.wait({acquiring}, timeout=0.3)
            assert not done, acquiring.exception()
        assert await acquiring == 1


async def test_a_fresh_file_locked_beyond_the_deadline_is_told(file: Path) -> None:
    with (
        opened(file, deadline_s=0.2) as store,
        held_by_somebody_else(file),
        pytest.raises(StoreUnavailable, match="another process has locked it"),
    ):
        await store.acquire()


async def test_reads_do_not_wait_for_a_locked_writer(file: Path) -> None:
    with opened(file, deadline_s=5) as store:
        generation = await store.acquire()
        await store.register(generation, deployment(), start())
        with held_by_somebody_else(file):
            writing = asyncio.ensure_future(store.spend(generation, NAME, wave(1)))
            async with asyncio.timeout(2):
                found = await store.recover(NAME)
            assert not writing.done()
        await writing
    assert found is not None
    assert found.highest_epoch == 0


async def test_a_call_that_is_cancelled_while_it_waits_writes_nothing(file: Path) -> None:
    with opened(file) as store:
        generation = await store.acquire()
        await store.register(generation, deployment(), start())
        with held_by_somebody_else(file):
            writing = asyncio.ensure_future(store.spend(generation, NAME, wave(1)))
            await store.recover(NAME)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        await store.spend(generation, NAME, wave(1))


async def test_a_slow_file_never_holds_up_the_event_loop(file: Path) -> None:
    with opened(file, deadline_s=1.5) as store:
        await store.acquire()
        with held_by_somebody_else(file):
            writing = asyncio.ensure_future(store.acquire())
            longest, before = 0.0, time.monotonic()
            while not writing.done():
                await asyncio.sleep(0)
                longest, before = max(longest, time.monotonic() - before), time.monotonic()
            with pytest.raises(StoreUnavailable):
                await writing
    assert longest < 1.0


async def test_more_calls_than_may_wait_are_refused_at_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eplb_service.store.lane.MAX_WAITING", 3)
    with opened(file, deadline_s=1) as store:
        await store.acquire()
        with held_by_somebody_else(file):
            calls = [asyncio.ensure_future(store.acquire()) for _ in range(8)]
            done, _ = await asyncio.wait(calls, timeout=0.5)
            refused = [str(call.exception()) for call in done]
        assert refused
        assert all("3 calls wait before it" in text for text in refused)
        await asyncio.wait(calls, timeout=5)
        assert all(call.exception() is None for call in calls if call not in done)


def refusal(path: Path) -> str:
    """What the store says when it is used at all."""

    async def use() -> str:
        with opened(path) as store, pytest.raises(StoreUnavailable) as refused:
            await store.acquire()
        return str(refused.value)

    return asyncio.run(use())


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(file: Path) -> None:
    file.write_text("my shopping list\n" * 100)
    assert "is not a database" in refusal(file)
    assert file.read_text() == "my shopping list\n" * 100


def test_a_database_of_another_program_is_refused_and_left_as_it_is(file: Path) -> None:
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE songs (title TEXT)")
        other.commit()
    before = file.read_bytes()
    assert "another program" in refusal(file)
    assert file.read_bytes() == before


async def test_a_file_of_a_newer_release_is_refused(file: Path) -> None:
    with opened(file) as store:
        await store.acquire()
    with closing(sqlite3.connect(file)) as newer:
        newer.execute("PRAGMA user_version = 9")
        newer.commit()
    with (
        opened(file) as store,
        pytest.raises(StoreUnavailable, match=rf"version 9.*up to {VERSION}"),
    ):
        await store.acquire()


async def test_a_file_of_the_release_before_is_carried_over(file: Path) -> None:
    with opened(file) as store:
        generation = await registered(store)
    with closing(sqlite3.connect(file)) as older:
        older.execute("ALTER TABLE history DROP COLUMN who")
        older.execute("DROP TABLE audit")
        older.execute("ALTER TABLE deployments DROP COLUMN drained")
        older.execute("ALTER TABLE fence DROP COLUMN beats")
        older.execute("PRAGMA user_version = 1")
        older.commit()
    with opened(file) as store:
        found = await store.recover(NAME)
        assert found is not None
        assert found.drained == ()
        await store.keep(generation, NAME, DrainNote((3,)))
        kept = await store.recover(NAME)
        assert kept is not None
        assert kept.drained == (3,)
        assert await store.beats.pulse() == Pulse(generation, 0)
    with closing(sqlite3.connect(file)) as newer:
        assert newer.execute("PRAGMA user_version").fetchone() == (VERSION,)


@pytest.mark.parametrize("path", ["missing/eplb.db", ".", "plain/eplb.db"])
async def test_a_path_that_cannot_hold_a_file_is_told(tmp_path: Path, path: str) -> None:
    (tmp_path / "plain").write_text("a file, no folder")
    with (
        opened(tmp_path / path) as store,
        pytest.raises(StoreUnavailable, match="its folder must exist and be writable"),
    ):
        await store.acquire()


def test_a_read_only_file_is_told() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eplb.db"
        asyncio.run(made(path))
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        with without_privileges():
            text = refusal(path)
        Path(folder).chmod(stat.S_IRWXU)
    assert text.startswith(f"store {path}: could not")
    assert "read-only" in text or "writable" in text


async def made(path: Path) -> None:
    with opened(path) as store:
        await store.acquire()


async def test_the_store_goes_on_when_its_folder_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "late" / "eplb.db"
    with opened(path) as store:
        with pytest.raises(StoreUnavailable):
            await store.acquire()
        path.parent.mkdir()
        assert await store.acquire() == 1


async def test_a_damaged_record_is_named(file: Path) -> None:
    with opened(file) as store:
        generation = await store.acquire()
        await store.register(generation, deployment(), start())
        with closing(sqlite3.connect(file)) as other:
            other.execute("UPDATE epochs SET body = substr(body, 1, 200)")
            other.commit()
        with pytest.raises(StoreUnavailable, match="epoch 0 of tiny/a/serve/0/ep is damaged"):
            await store.recover(NAME)


async def test_a_closed_store_answers_in_time(file: Path) -> None:
    store = SqliteStore(file, deadline_s=0.1)
    await store.acquire()
    store.close()
    with pytest.raises(StoreUnavailable, match="acquire the next generation"):
        await store.acquire()


async def test_many_stores_may_make_the_file_at_one_time(file: Path) -> None:
    stores = [SqliteStore(file) for _ in range(8)]
    got = await asyncio.gather(*(store.acquire() for store in stores))
    for store in stores:
        store.close()
    assert sorted(got) == list(range(1, 9))


async def test_even_shares_take_no_room(file: Path) -> None:
    with opened(file) as store:
        generation = await store.acquire()
        await store.register(generation, deployment(), start())
        await store.spend(generation, NAME, wave(1))
        found = await store.epoch(NAME, Epoch(1))
        with closing(sqlite3.connect(file)) as other:
            [blob] = other.execute("SELECT body FROM epochs WHERE epoch = 1").fetchone()
    assert found is not None
    assert_same(found[0], wave(1))
    assert b"tables" not in blob
