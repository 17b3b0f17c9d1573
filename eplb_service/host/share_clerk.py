"""Draws shares in one process that stays: it takes longer to start than to draw them."""

import asyncio
import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import cast

from eplb_service.controller.sharing import Proposal, ShareTask, propose
from eplb_service.domain.errors import EplbError, PlannerFailed, PlannerTimeout

JOIN_S = 5.0
NICENESS = 5
"""Below the controller's own: ranks are heard first where cores are scarce."""
NICENESS_OF_SHARES = 10
"""They are drawn all the time, and nothing waits for them."""

Answer = Proposal | EplbError | None


@dataclass(frozen=True, slots=True)
class _Desk:
    """The process, and the way to it."""

    process: BaseProcess
    way: Connection

    def clear(self) -> int | None:
        """End the process; return its exit code."""
        self.process.kill()
        self.process.join(JOIN_S)
        self.way.close()
        return self.process.exitcode


class _Died:
    """The process ended before it answered."""


class ShareClerk:
    """Takes one task after the other; a process that died or was killed is replaced."""

    def __init__(self, context: SpawnContext) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        self._desk: _Desk | None = None

    async def share(self, task: ShareTask, *, deadline_s: float) -> Proposal | None:
        """Run sharing.propose elsewhere; raises PlannerFailed, PlannerTimeout or InvalidTable.

        A draw that is cancelled kills the process at once.
        """
        async with self._turn:
            desk = self._desk = self._desk or await asyncio.to_thread(self._opened)
            asked = asyncio.ensure_future(asyncio.to_thread(_ask, desk, task))
            try:
                done, _ = await asyncio.wait({asked}, timeout=deadline_s)
            except asyncio.CancelledError:
                await self._end(desk, asked)
                raise
            if not done:
                await self._end(desk, asked)
                raise PlannerTimeout(
                    f"shares were not drawn within {deadline_s:g} s, and what drew them was "
                    "killed; nothing changed, the next interval draws again"
                )
            answer = asked.result()
            if isinstance(answer, _Died):
                self._desk = None
                code = await asyncio.to_thread(desk.clear)
                raise PlannerFailed(
                    f"the process that draws shares died with exit code {code}; nothing changed, "
                    "the next interval draws again"
                )
        if isinstance(answer, EplbError):
            raise answer
        return answer

    async def _end(self, desk: _Desk, asked: "asyncio.Future[Answer | _Died]") -> None:
        """End the process, and with it what waits for its answer."""
        desk.process.kill()
        await asyncio.wait({asked})
        self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.clear()

    def _opened(self) -> _Desk:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there,), daemon=True)
        process.start()
        there.close()
        return _Desk(process, cast("Connection", here))


def _ask(desk: _Desk, task: ShareTask) -> Answer | _Died:
    """Wait for an answer for as long as the process lives."""
    try:
        desk.way.send(task)
        return desk.way.recv()
    except (EOFError, OSError):
        return _Died()


def _work(way: Connection) -> None:
    settle(NICENESS_OF_SHARES)
    while True:
        try:
            task: ShareTask = way.recv()
        except EOFError:
            return
        way.send(_drawn(task))


def _drawn(task: ShareTask) -> Answer:
    try:
        return propose(task)
    except EplbError as refused:
        return refused
    except Exception as fault:  # noqa: BLE001 -- told where it is asked for
        return PlannerFailed(
            f"drawing shares raised {type(fault).__name__}: {fault}; nothing changed, the next "
            "interval draws again"
        )


def settle(niceness: int = NICENESS) -> None:
    """Make a process that draws yield to the controller, and end with it."""
    os.nice(niceness)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A controller that was killed cannot kill what draws for it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
