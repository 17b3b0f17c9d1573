"""One world per kind of store: a place that several controllers can open at one time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eplb_service.store import MemoryStore, SqliteStore
from eplb_service.store.redis_store import RedisStore
from eplb_service.store.redis_wire import Wire
from tests.store.redis_server import RedisServer

if TYPE_CHECKING:
    from eplb_service.controller.ports import Archive, Store

Opened = SqliteStore | RedisStore | MemoryStore
Open = Callable[[], Opened]


def is_both_sides(store: Opened) -> "tuple[Store, Archive]":
    """Let the type checker compare all stores with the controller's ports."""
    return store, store


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that leave it as they found it: empty."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.processes), "memory"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Open the same store once more, as another controller would."""
    opened: list[Opened] = []
    memory = MemoryStore()

    def open_one() -> Opened:
        match request.param:
            case "memory":
                return memory
            case "redis":
                return RedisStore(request.getfixturevalue("redis_server").url)
            case _:
                return SqliteStore(tmp_path / "eplb.db")

    def another() -> Opened:
        store = open_one()
        opened.append(store)
        return store

    if request.param == "redis":
        wire = Wire(request.getfixturevalue("redis_server").url, deadline_s=5.0)
        wire.ask("FLUSHALL")
        wire.close()

    yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_again: Open) -> Opened:
    return open_again()
