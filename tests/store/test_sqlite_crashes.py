"""A controller may be killed at any moment; what the store confirmed is there, nothing is half."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from eplb_service.domain.errors import StoreUnavailable
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store import SqliteStore
from tests.store.ledger import NAME, assert_same, ended, wave

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@contextmanager
def writer(script: str, *arguments: str | Path) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _as_main(script), *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _as_main(script: str) -> str:
    """Run a file of this folder with the repository's root on the path."""
    name = f"tests.store.{script}"
    return (
        f"import runpy, sys; sys.path.insert(0, '.'); runpy.run_module('{name}', {{}}, '__main__')"
    )


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line.strip())
        if seen[-1] == last:
            return seen
    raise AssertionError(f"the writer ended early: {seen[-3:]}")


def kill(process: subprocess.Popen[str]) -> list[str]:
    """End the process at once and return what it had still said."""
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    rest = [line.strip() for line in process.stdout]
    assert process.wait(10) == -signal.SIGKILL
    return rest


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as file:
        return str(file.execute("PRAGMA integrity_check").fetchone()[0])


@pytest.mark.parametrize("epoch", [1, 4, 9])
async def test_what_was_confirmed_before_a_kill_is_there_after_it(
    tmp_path: Path, epoch: int
) -> None:
    path = tmp_path / "eplb.db"
    with writer("crash_writer", path) as process:
        said = lines_until(process, f"spent {epoch}")
        said += kill(process)
    word, number = said[-1].split()
    store = SqliteStore(path)
    found = await store.recover(NAME)
    assert found is not None
    last, was_settled = int(number), word == "settled"
    assert found.highest_epoch in (last, last + was_settled)
    assert found.settled.wave.epoch in (last, last - (not was_settled))
    assert integrity(path) == "ok"
    generation = await store.acquire()
    assert generation == 2
    await store.spend(generation, NAME, wave(found.highest_epoch + 1))
    store.close()


async def test_a_transaction_that_was_cut_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "eplb.db"
    with writer("crash_writer", path, "stall") as process:
        lines_until(process, "stalled")
        kill(process)
    store = SqliteStore(path)
    found = await store.recover(NAME)
    assert found is not None
    assert found.open_end is not None
    assert_same(found.settled, wave(2))
    assert_same(found.open_epoch, wave(3))
    assert found.open_end.phase is WavePhase.SPENT
    generation = await store.acquire()
    await store.end(generation, NAME, ended(3, WavePhase.SETTLED))
    store.close()


async def test_a_process_that_stalls_in_a_transaction_is_reported_as_holding_the_lock(
    tmp_path: Path,
) -> None:
    path = tmp_path / "eplb.db"
    with writer("crash_writer", path, "stall") as process:
        lines_until(process, "stalled")
        store = SqliteStore(path, deadline_s=1.5)
        with pytest.raises(StoreUnavailable, match="another process has locked it"):
            await store.acquire()
        kill(process)
        assert await store.acquire() == 2
        store.close()


def test_a_full_disk_is_told_and_survived(tmp_path: Path) -> None:
    path = tmp_path / "eplb.db"
    with writer("full_disk_writer", path) as process:
        out, _ = process.communicate(timeout=60)
    refused, went_on = out.splitlines()
    number, code, text = refused.split(" ", 2)
    assert int(number) > 1
    assert code == "store_unavailable"
    assert text.startswith(f"store {path}: could not spend epoch {number} of {NAME}: ")
    assert went_on == "went on"
    assert integrity(path) == "ok"
