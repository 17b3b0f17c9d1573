"""A store that cannot be used at the start: the controller says that it does not start, and why."""

import socket
import sqlite3
from pathlib import Path

import pytest

from eplb_service.domain.errors import StoreUnavailable
from eplb_service.host.assembly import Service
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import ServerSettings, StoreSettings
from eplb_service.store import SqliteStore, open_store
from eplb_service.store.schema import explained
from tests.controller.office import HereRunner


class Runner(HereRunner):
    def close(self) -> None:
        """Nothing runs."""


async def refusal_of(url: str) -> str:
    settings = Settings(
        store=StoreSettings(url=url, deadline_s=2.0),
        server=ServerSettings(port=0, metrics_port=0),
    )
    with pytest.raises(StoreUnavailable) as raised:
        await Service(settings, Runner()).run(lambda _: pytest.fail("it serves"))
    return str(raised.value)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


async def damaged(path: Path) -> str:
    """A file that was ours, and whose pages are overwritten."""
    store = SqliteStore(path)
    await store.acquire()
    store.close()
    overwrite(path)
    return f"sqlite://{path}"


def overwrite(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xa5" * (len(data) - 100))


async def test_a_redis_that_nobody_serves() -> None:
    said = await refusal_of(f"redis://127.0.0.1:{free_port()}/0")
    assert "Connection refused" in said
    assert "the controller does not start without its store: see to the server" in said
    assert "recorded" not in said
    assert "serving goes on" not in said


async def test_a_file_that_is_damaged(tmp_path: Path) -> None:
    said = await refusal_of(await damaged(tmp_path / "eplb.db"))
    assert "the file is damaged" in said
    assert "`eplb-service store restore`" in said
    assert "the controller does not start without its store: see to the file" in said
    assert "recorded" not in said


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    said = await refusal_of(f"sqlite://{tmp_path}/gone/eplb.db")
    assert "its folder must exist and be writable" in said
    assert "the controller does not start" in said


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_read_does_not_speak_of_recording(tmp_path: Path, kind: str) -> None:
    redis = f"redis://127.0.0.1:{free_port()}/0"
    url = redis if kind == "redis" else await damaged(tmp_path / "eplb.db")
    store = open_store(url, deadline_s=2.0)
    with pytest.raises(StoreUnavailable) as raised:
        await store.audited(0, 10)
    store.close()
    assert "recorded" not in str(raised.value)
    assert "serving goes on" not in str(raised.value)


def test_a_full_disk_is_called_so(tmp_path: Path) -> None:
    file = sqlite3.connect(tmp_path / "small.db")
    file.execute("CREATE TABLE t (body BLOB)")
    file.execute("PRAGMA max_page_count = 3")
    with pytest.raises(sqlite3.OperationalError) as raised:
        file.execute("INSERT INTO t VALUES (zeroblob(100000))")
    file.close()
    assert explained(raised.value, tmp_path) == "the disk is full; make room on it"
