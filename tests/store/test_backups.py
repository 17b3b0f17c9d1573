"""A store is backed up while it is written, and restored whole while nobody leads, or not."""

import asyncio
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from eplb_service.controller.records import DrainNote, HistoryEntry
from eplb_service.domain.audit import Happened, first_break
from eplb_service.domain.errors import InvalidRequest, InvalidSettings, StoreConflict
from eplb_service.domain.errors import StoreUnavailable as Unavailable
from eplb_service.domain.ids import Epoch, Generation
from eplb_service.store import MemoryStore, open_store
from eplb_service.store.backups import back_up, restore
from eplb_service.store.copying import Restoring
from eplb_service.store.redis_wire import Wire
from tests.store.conftest import Opened
from tests.store.ledger import NAME, assert_same, deployment, registered, settle, start, wave
from tests.store.redis_server import RedisServer

WATCH_S = 0.3


@dataclass(frozen=True, slots=True)
class Places:
    """Two places of one kind of store, the second of them empty, and a file for a backup."""

    kind: str
    here: str
    there: str
    file: Path


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.processes)])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    file = tmp_path / "backup"
    if request.param == "sqlite":
        yield Places("sqlite", f"sqlite:{tmp_path}/here.db", f"sqlite:{tmp_path}/there.db", file)
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    here, there = (f"{server.url[:-1]}{number}" for number in (3, 4))
    yield Places("redis", here, there, file)
    for url in (here, there):
        with asked(url) as wire:
            wire.ask("FLUSHDB")


@contextmanager
def asked(url: str) -> Generator[Wire]:
    wire = Wire(url, deadline_s=5.0)
    yield wire
    wire.close()


@contextmanager
def opened(url: str) -> Generator[Opened]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def put(url: str, file: Path, *, is_forced: bool = False) -> None:
    restore(url, Restoring(file, "otto", is_forced=is_forced, watch_s=WATCH_S))


def happened(text: str) -> Happened:
    return Happened(1.0, "eplb://operator/otto", "freeze", NAME, text, "", "done")


async def fill(store: Opened) -> Generation:
    """Two settled epochs, an open one, history, a drain and an audit; return the generation."""
    generation = await registered(store)
    await settle(store, generation, 1, 2)
    await store.spend(generation, NAME, wave(3))
    await store.keep(generation, NAME, HistoryEntry(1.5, "plan", "plan3", Epoch(3), "three", "ada"))
    await store.keep(generation, NAME, DrainNote((1,)))
    for number in range(3):
        await store.audit(happened(f"{number}"))
    return generation


async def test_what_was_backed_up_is_there_after_a_restore(places: Places) -> None:
    with opened(places.here) as store:
        generation = await fill(store)
        copied = await asyncio.to_thread(back_up, places.here, places.file)
        assert (copied.deployments, copied.num_audited, copied.chain_break) == ((NAME,), 3, "")
        await settle(store, generation, 4)  # not in the backup
    assert places.file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in places.file.parent.glob("backup*")] == ["backup"]
    await asyncio.to_thread(put, places.there, places.file)
    with opened(places.there) as store:
        found = await store.recover(NAME)
        assert found is not None
        assert_same(found.settled, wave(2))
        assert_same(found.open_epoch, wave(3))
        assert (found.highest_epoch, found.drained) == (3, (1,))
        assert [entry.text for entry in await store.history(NAME, 9)] == ["three"]
        entries = list(reversed(await store.audited(0, 99)))
        assert first_break(entries) == ""
        told = [(entry.happened.verb, entry.happened.what) for entry in entries]
        assert told == [*(("freeze", f"{n}") for n in range(3)), ("restore", "from backup")]
        newer = await store.acquire()
        assert newer > generation + 1
        await settle(store, newer, 3 + 1)


async def test_a_backup_is_one_moment_while_a_controller_writes(places: Places) -> None:
    with opened(places.here) as store:
        generation = await registered(store)
        writing = asyncio.create_task(settle(store, generation, *range(1, 30)))
        files = [places.file.with_name(f"backup{number}") for number in range(4)]
        for file in files:
            await asyncio.to_thread(back_up, places.here, file)
        await writing
    highest = list[int]()
    for file in files:
        await asyncio.to_thread(put, places.there, file, is_forced=True)
        with opened(places.there) as store:
            found = await store.recover(NAME)
            assert found is not None
            highest.append(found.highest_epoch)
            # A number that is open was spent after the settled one, and nothing is in between.
            assert found.highest_epoch - found.settled.wave.epoch in {0, 1}
    assert highest == sorted(highest)


async def test_a_store_that_is_led_is_left_alone(places: Places) -> None:
    with opened(places.here) as store:
        generation = await fill(store)
        await asyncio.to_thread(back_up, places.here, places.file)
        await settle(store, generation, 4)
        restoring = Restoring(places.file, "otto", is_forced=True, watch_s=30.0)
        work = asyncio.create_task(asyncio.to_thread(restore, places.here, restoring))
        while not work.done():
            await store.beats.give(generation)
            await asyncio.sleep(0.02)
        with pytest.raises(StoreConflict, match=f"generation {generation} leads on this store"):
            await work
        found = await store.recover(NAME)
        assert found is not None
        assert found.highest_epoch == 4


async def test_data_is_replaced_by_force_alone_and_the_sleeping_leader_is_fenced(
    places: Places,
) -> None:
    with opened(places.here) as store:
        generation = await fill(store)
        await asyncio.to_thread(back_up, places.here, places.file)
        await settle(store, generation, 4)
        head = await store.audit(happened("later"))
        sentence = f"holds 1 deployments \\({NAME}\\) and 4 audit entries.*--force"
        with pytest.raises(InvalidRequest, match=sentence):
            await asyncio.to_thread(put, places.here, places.file)
        assert (await store.audited(0, 1))[0] == head
        await asyncio.to_thread(put, places.here, places.file, is_forced=True)
        with pytest.raises(StoreConflict, match="has taken over"):
            await store.spend(generation, NAME, wave(5))
        found = await store.recover(NAME)
        assert found is not None
        assert found.highest_epoch == 3
        (newest,) = await store.audited(0, 1)
        assert newest.number == 4
        assert newest.happened.what.endswith(f"audit up to entry 4, {head.digest}")


async def test_deployments_that_the_backup_does_not_hold_are_gone(places: Places) -> None:
    with opened(places.here) as store:
        await fill(store)
    await asyncio.to_thread(back_up, places.here, places.file)
    with opened(places.there) as store:
        generation = await store.acquire()
        await store.register(generation, deployment(name="other"), start())
        other = deployment(name="other").identity.name
    await asyncio.to_thread(put, places.there, places.file, is_forced=True)
    with opened(places.there) as store:
        assert await store.deployments() == (NAME,)
        assert await store.recover(other) is None


def test_a_broken_chain_is_told(places: Places) -> None:
    async def break_it() -> None:
        with opened(places.here) as store:
            await fill(store)

    asyncio.run(break_it())
    if places.kind == "sqlite":
        with closing(sqlite3.connect(places.here.partition(":")[2])) as file, file:
            file.execute("DELETE FROM audit WHERE number = 2")
    else:
        with asked(places.here) as wire:
            wire.ask("LSET", "{eplb}:audit", 1, wire.look(("LINDEX", "{eplb}:audit", 2))[0])  # pyright: ignore[reportArgumentType]
    assert back_up(places.here, places.file).chain_break


def test_a_backup_replaces_no_file_and_an_absent_store_makes_none(places: Places) -> None:
    with pytest.raises(Unavailable, match=r"no such file|holds no store"):
        back_up(places.here, places.file)
    assert not places.file.exists()
    places.file.write_text("mine")
    with pytest.raises(InvalidRequest, match="backup exists"):
        back_up(places.here, places.file)
    assert places.file.read_text() == "mine"


def test_memory_has_nothing_to_back_up(tmp_path: Path) -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    with pytest.raises(InvalidSettings, match="can be backed up"):
        back_up("memory:", tmp_path / "backup")
