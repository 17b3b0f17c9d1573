"""A URL names the store."""

from pathlib import Path

import pytest

from eplb_service.domain.errors import InvalidSettings
from eplb_service.store import MemoryStore, SqliteStore, open_store


async def test_three_slashes_name_a_file_by_its_absolute_path(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/with%20space.db")
    await store.acquire()
    store.close()
    assert (tmp_path / "with space.db").is_file()


async def test_without_slashes_the_path_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:eplb.db")
    assert isinstance(store, SqliteStore)
    await store.acquire()
    store.close()
    assert (tmp_path / "eplb.db").is_file()


def test_memory_is_a_store_of_its_own_each_time() -> None:
    one, other = open_store("memory:"), open_store("memory:")
    assert isinstance(one, MemoryStore)
    assert one is not other


@pytest.mark.parametrize(
    "url",
    ["", "postgres://db/eplb", "/var/lib/eplb.db", "sqlite:", "sqlite://host/x", "sqlite:/a/"],
)
def test_a_url_that_names_no_store_is_answered_with_those_that_do(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"known: sqlite:///.*, memory:"):
        open_store(url)
