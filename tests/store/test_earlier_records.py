"""What an earlier release wrote down is read: it did not say who asked."""

import io
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from eplb_service.controller.records import HistoryEntry
from eplb_service.store.codec import decode, encode
from eplb_service.store.redis_ledger import ENTRY
from eplb_service.store.sqlite import SqliteStore
from tests.store.ledger import NAME, assert_same, registered, wave


def test_an_epoch_that_does_not_say_who_asked_is_read() -> None:
    record = wave(3, note="hot")
    with np.load(io.BytesIO(encode(record)), allow_pickle=False) as archive:
        arrays = dict(archive)
    assert str(arrays.pop("who")) == "ada"
    older = io.BytesIO()
    np.savez_compressed(older, allow_pickle=False, **arrays)
    assert_same(decode(older.getvalue(), what="epoch 3"), replace(record, who=""))


def test_a_line_of_history_that_does_not_say_who_asked_is_read() -> None:
    line = HistoryEntry(1.5, "freeze", "", 4, "for a day", "ada")
    tree = json.loads(ENTRY.dump_json(line))
    assert tree.pop("who") == "ada"
    assert ENTRY.validate_json(json.dumps(tree)) == replace(line, who="")


async def test_a_file_whose_history_does_not_say_who_asked_is_led_on(tmp_path: Path) -> None:
    file = tmp_path / "eplb.db"
    frozen = HistoryEntry(1.5, "freeze", "", 0, "for a day")
    lifted = HistoryEntry(2.5, "unfreeze", "", 0, "done", "ada")
    with closing(SqliteStore(file)) as store:
        generation = await registered(store)
        await store.keep(generation, NAME, frozen)
    with closing(sqlite3.connect(file)) as older:
        older.execute("ALTER TABLE history DROP COLUMN who")
        older.execute("PRAGMA user_version = 4")
        older.commit()
    with closing(SqliteStore(file)) as store:
        await store.keep(generation, NAME, lifted)
        assert await store.history(NAME, 9) == (lifted, frozen)
