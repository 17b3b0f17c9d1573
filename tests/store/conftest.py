"""One world per kind of store: a place that several controllers can open at one time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eplb_service.store import MemoryStore, SqliteStore

if TYPE_CHECKING:
    from eplb_service.controller.ports import Archive, Store

Opened = SqliteStore | MemoryStore
Open = Callable[[], Opened]


def is_both_sides(store: Opened) -> "tuple[Store, Archive]":
    """Let the type checker compare both stores with the controller's ports."""
    return store, store


@pytest.fixture(params=["sqlite", "memory"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Open the same store once more, as another controller would."""
    opened: list[Opened] = []
    memory = MemoryStore()

    def another() -> Opened:
        store = memory if request.param == "memory" else SqliteStore(tmp_path / "eplb.db")
        opened.append(store)
        return store

    yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_again: Open) -> Opened:
    return open_again()
