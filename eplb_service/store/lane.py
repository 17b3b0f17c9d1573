"""A thread that does a store's blocking work, one job at a time, each by its deadline.

The event loop never touches the file. A job that is late is given up before its
commit, so that a caller who was told "nothing was recorded" can believe it.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Generic, TypeVar

from eplb_service.domain.errors import EplbError, StoreUnavailable
from eplb_service.store.schema import explained

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
Connect = Callable[[float], sqlite3.Connection]
"""Open a connection, waiting at most the given seconds."""

READ, WRITE = "BEGIN DEFERRED", "BEGIN IMMEDIATE"
MAX_WAITING = 256
PATIENCE = 0.9
"""Of the time that a job has left, the part that it may wait for a lock."""


class _State(Enum):
    OPEN = auto()
    COMMITTING = auto()
    """Too late to be given up."""
    GIVEN_UP = auto()


class Job(Generic[T]):
    """One transaction, on its way."""

    def __init__(self, what: str, work: Work[T], *, deadline_s: float) -> None:
        self.what, self.work = what, work
        self.give_up_at = time.monotonic() + deadline_s
        self.future: Future[T] = Future()
        self._state, self._lock = _State.OPEN, threading.Lock()

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, at least a millisecond."""
        return max(0.001, self.give_up_at - time.monotonic())

    def give_up(self) -> bool:
        """Forbid the commit; False if it has begun."""
        return self._go(_State.GIVEN_UP)

    def may_commit(self) -> bool:
        """Begin the commit; False if the caller has given up."""
        return self._go(_State.COMMITTING)

    def _go(self, state: _State) -> bool:
        with self._lock:
            if self._state is _State.OPEN:
                self._state = state
            return self._state is state


class Lane:
    """One thread with one connection to one file.

    begin    READ or WRITE: the statement that opens each transaction
    """

    def __init__(self, file: str, connect: Connect, *, begin: str, deadline_s: float) -> None:
        self._file, self._connect, self._begin = file, connect, begin
        self._deadline_s = deadline_s
        self._is_reading = begin == READ
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_WAITING)
        self._connection: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._serve, name=f"store {begin}", daemon=True)
        self._thread.start()

    async def run(self, what: str, work: Work[T]) -> T:
        """Run work in a transaction; raises StoreUnavailable if it cannot be done in time."""
        job = Job(what, work, deadline_s=self._deadline_s)
        try:
            self._jobs.put_nowait(lambda: self._run(job))
        except queue.Full:
            raise self._unavailable(what, f"{MAX_WAITING} calls wait before it") from None
        waiting = asyncio.wrap_future(job.future)
        try:
            await asyncio.wait({waiting}, timeout=self._deadline_s)
            if not waiting.done() and not job.give_up():
                await asyncio.wait({waiting}, timeout=self._deadline_s)
        finally:
            job.give_up()
            if not waiting.done():
                waiting.cancel()
        if waiting.cancelled():
            raise self._late(job)
        return waiting.result()

    def close(self) -> None:
        """End the thread after the jobs that wait; later calls raise StoreUnavailable."""
        with suppress(queue.Full):
            self._jobs.put(None, timeout=self._deadline_s)
        self._thread.join(self._deadline_s)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        self._hang_up()

    def _run(self, job: Job[T]) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            job.future.set_result(self._transact(job))
        except EplbError as error:
            job.future.set_exception(error)
        except sqlite3.Error as error:
            self._hang_up()
            job.future.set_exception(
                self._unavailable(job.what, explained(error, Path(self._file)))
            )
        except Exception as error:  # noqa: BLE001 -- a fault of ours; raised again at the caller
            self._hang_up()
            job.future.set_exception(error)

    def _transact(self, job: Job[T]) -> T:
        # A little less than is left, so that the answer is "locked" and not merely "late".
        if self._connection is None:
            self._connection = self._connect(job.remaining_s * PATIENCE)
        connection = self._connection
        connection.execute(f"PRAGMA busy_timeout = {int(job.remaining_s * PATIENCE * 1000) + 1}")
        connection.execute(self._begin)
        try:
            result = job.work(connection)
            self._require_time(job)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _require_time(self, job: Job[T]) -> None:
        if not job.may_commit():
            raise self._late(job)

    def _hang_up(self) -> None:
        """Close the connection; the next job opens a fresh one."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _late(self, job: Job[T]) -> StoreUnavailable:
        if job.give_up():
            return self._unavailable(job.what, f"it took longer than {self._deadline_s:g} s")
        waited = f"{2 * self._deadline_s:g} s"
        if self._is_reading:
            return self._unavailable(job.what, f"it took longer than {waited}")
        return StoreUnavailable(
            f"store {self._file}: the disk did not confirm within {waited} that it could "
            f"{job.what}",
            "whether that is recorded will be seen when it answers again",
        )

    def _unavailable(self, what: str, why: str) -> StoreUnavailable:
        then = "" if self._is_reading else "nothing was recorded, serving goes on"
        return StoreUnavailable(f"store {self._file}: could not {what}: {why}", then)
