"""A controller to be killed: spends and settles numbers, and says what the store confirmed.

Run as `python crash_writer.py FILE [stall]`; with `stall` it stops for ever in the middle
of the transaction that settles epoch 3.
"""

import asyncio
import signal
import sqlite3
import sys
from pathlib import Path

from eplb_service.controller.records import EpochEnd
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store import SqliteStore, rows
from tests.store.ledger import NAME, deployment, ended, start, wave


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def stall_in_the_middle() -> None:
    write_end = rows.write_end

    def stalling(connection: sqlite3.Connection, name: str, end: EpochEnd) -> None:
        write_end(connection, name, end)
        if end.epoch == 3 and end.phase is WavePhase.SETTLED:
            say("stalled")
            signal.pause()

    rows.write_end = stalling


async def main(path: Path) -> None:
    store = SqliteStore(path, deadline_s=60)
    generation = await store.acquire()
    await store.register(generation, deployment(), start())
    for number in range(1, 100_000):
        await store.spend(generation, NAME, wave(number))
        say(f"spent {number}")
        await store.end(generation, NAME, ended(number, WavePhase.SETTLED))
        say(f"settled {number}")


if __name__ == "__main__":
    if sys.argv[2:] == ["stall"]:
        stall_in_the_middle()
    asyncio.run(main(Path(sys.argv[1])))
