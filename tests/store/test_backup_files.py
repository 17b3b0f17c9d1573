"""What is no sound backup is refused by a sentence; one of an earlier release is led on."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from eplb_service.domain.errors import InvalidRequest, StoreUnavailable
from eplb_service.store.backups import back_up
from eplb_service.store.redis_file import Kept, pack
from eplb_service.store.schema import VERSION
from tests.store.ledger import NAME
from tests.store.redis_server import RedisServer
from tests.store.test_backups import asked, fill, opened, put


def a_newer_schema(file: Path) -> None:
    with closing(sqlite3.connect(file)) as one:
        one.execute(f"PRAGMA user_version = {VERSION + 1}")


def anothers(file: Path) -> None:
    with closing(sqlite3.connect(file)) as one:
        one.execute("PRAGMA application_id = 1")


def damaged(file: Path) -> None:
    pages = bytearray(file.read_bytes())
    pages[5000 : len(pages) - 100] = b"x" * (len(pages) - 5100)
    file.write_bytes(pages)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def text(file: Path) -> None:
    file.write_text("no database\n" * 100)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (a_newer_schema, "written by a newer release"),
        (anothers, "of another program"),
        (damaged, "damaged|malformed"),
        (empty, "holds no tables"),
        (text, "not a SQLite file"),
        (Path.unlink, "no such file"),
    ],
)
async def test_a_sqlite_file_that_is_no_sound_backup_is_refused(
    spoil: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    file, here = tmp_path / "backup.db", f"sqlite:{tmp_path}/here.db"
    with opened(here) as store:
        await fill(store)
    back_up(here, file)
    spoil(file)
    with pytest.raises((InvalidRequest, StoreUnavailable), match=sentence):
        await asyncio.to_thread(put, f"sqlite:{tmp_path}/there.db", file)
    assert not (tmp_path / "there.db").exists()


async def test_a_backup_of_an_earlier_release_is_led_on_in_the_store_alone(tmp_path: Path) -> None:
    file, here = tmp_path / "backup.db", f"sqlite:{tmp_path}/here.db"
    with opened(here) as store:
        await fill(store)
    back_up(here, file)
    with closing(sqlite3.connect(file)) as old:
        old.execute("ALTER TABLE history DROP COLUMN who")
        old.execute("ALTER TABLE deployments DROP COLUMN drained")
        old.execute("ALTER TABLE fence DROP COLUMN beats")
        old.execute("DROP TABLE audit")
        old.execute("PRAGMA user_version = 1")
        old.commit()
    before = file.read_bytes()
    there = f"sqlite:{tmp_path}/there.db"
    await asyncio.to_thread(put, there, file)
    assert file.read_bytes() == before
    with opened(there) as store:
        found = await store.recover(NAME)
        assert found is not None
        assert (found.highest_epoch, found.drained) == (3, ())
        assert [entry.happened.verb for entry in await store.audited(0, 9)] == ["restore"]


SOUND = (Kept("{eplb}:fence", "string", (b"1",)), Kept("{eplb}:deployments", "set", (b"a",)))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "first line"),
        (b"SQLite format 3\0", "first line"),
        (b'{"format": "other", "version": 1, "at_s": 1}\n{}\n', "'other', expected 'eplb-redis'"),
        (b'{"format": "eplb-redis", "version": 2, "at_s": 1}\n{}\n', "another release"),
        (pack(SOUND, at_s=1.0)[:-40], "cut short"),
        (b"".join(pack(SOUND, at_s=1.0).splitlines(keepends=True)[:-1]), "cut short"),
        (pack(SOUND, at_s=1.0).replace(b"MQ==", b"Mg=="), "not those that its last line"),
        (pack((*SOUND, Kept("mine", "string", (b"1",))), at_s=1.0), "no string 'mine'"),
        (pack(SOUND[1:], at_s=1.0), "fence or its audit is damaged"),
    ],
)
@pytest.mark.processes
def test_a_file_that_is_no_backup_of_redis_is_refused(
    content: bytes, sentence: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    url = f"{redis_server.url[:-1]}5"
    file = tmp_path / "backup"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=sentence):
        put(url, file)
    with asked(url) as wire:
        assert wire.ask("DBSIZE") == 0


@pytest.mark.processes
async def test_keys_of_others_are_neither_copied_nor_touched(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    url = f"{redis_server.url[:-1]}6"
    with asked(url) as wire, opened(url) as store:
        wire.ask("SET", "mine", "x")
        await fill(store)
        back_up(url, tmp_path / "backup")
        assert '"mine"' not in (tmp_path / "backup").read_text()
        await asyncio.to_thread(put, url, tmp_path / "backup", is_forced=True)
        assert wire.ask("GET", "mine") == b"x"
        wire.ask("FLUSHDB")
