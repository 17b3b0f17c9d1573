"""Redis that is away, forgetful or raced is a named failure; what was acknowledged is there."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eplb_service.controller.records import HistoryEntry, SettingsNote
from eplb_service.domain.errors import StoreConflict, StoreUnavailable
from eplb_service.domain.ids import Epoch, Revision
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store import open_store
from eplb_service.store.redis_ledger import read
from eplb_service.store.redis_store import RedisStore
from eplb_service.store.redis_wire import Wire
from tests.store.ledger import NAME, assert_same, ended, registered, settle, wave
from tests.store.redis_server import RedisServer

pytestmark = pytest.mark.processes


@contextmanager
def served(folder: Path, *, appendfsync: str = "always") -> Generator[RedisServer]:
    server = RedisServer(folder, appendfsync=appendfsync)
    try:
        yield server
    finally:
        server.kill()


async def test_what_was_acknowledged_outlives_a_killed_server(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        store = RedisStore(server.url, deadline_s=4.0)
        generation = await registered(store)
        await store.spend(generation, NAME, wave(1))
        server.kill()
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{server.port}.*spend epoch 2"):
            await store.spend(generation, NAME, wave(2))
        server.start()
        found = await store.recover(NAME)
        assert found is not None
        assert_same(found.open_epoch, wave(1))
        assert await store.acquire() == generation + 1
        store.close()


async def test_a_server_that_may_forget_is_refused_by_name(tmp_path: Path) -> None:
    with served(tmp_path, appendfsync="everysec") as server:
        store = RedisStore(server.url)
        with pytest.raises(StoreUnavailable, match="appendfsync is everysec, expected always"):
            await store.acquire()
        store.close()


async def test_a_write_decided_on_an_older_version_changes_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        store = RedisStore(server.url)
        generation = await registered(store)
        wire = Wire(server.url, deadline_s=5.0)
        before = read(wire, NAME)
        await store.keep(generation, NAME, SettingsNote('{"a": 1}'))
        late = [("HSET", before.keys.head, "settings", "{}")]
        assert not wire.write(before.keys.all, (generation, before.version), late)
        newest = read(wire, NAME)
        assert newest.head["settings"] == b'{"a": 1}'
        assert not wire.write(newest.keys.all, (generation + 1, newest.version), late)
        assert read(wire, NAME).version == newest.version
        wire.close()
        store.close()


async def test_writers_of_one_deployment_wait_for_each_other(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        store, other = RedisStore(server.url), RedisStore(server.url)
        generation = await registered(store)
        lines = [HistoryEntry(float(n), "plan", "", 0, str(n)) for n in range(12)]
        pairs = zip(lines, (store, other) * 6, strict=True)
        await asyncio.gather(*(one.keep(generation, NAME, line) for line, one in pairs))
        assert {line.text for line in await store.history(NAME, 20)} == {
            line.text for line in lines
        }
        for one in (store, other):
            one.close()


async def test_a_fenced_controller_ends_nothing_and_spends_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        old, new = RedisStore(server.url), RedisStore(server.url)
        fenced = await registered(old)
        await settle(old, fenced, 1)
        await new.acquire()
        for write in (
            old.spend(fenced, NAME, wave(2)),
            old.end(fenced, NAME, ended(1, WavePhase.SETTLED)),
            old.spend_revision(fenced, NAME, Epoch(1), Revision(1)),
        ):
            with pytest.raises(StoreConflict, match="has taken over"):
                await write
        for one in (old, new):
            one.close()


async def test_errors_never_tell_the_password() -> None:
    store = open_store("redis://eplb:secret@127.0.0.1:1/0", deadline_s=1.0)
    with pytest.raises(StoreUnavailable) as failed:
        await store.acquire()
    assert "secret" not in str(failed.value)
    assert "127.0.0.1:1" in str(failed.value)
    store.close()
