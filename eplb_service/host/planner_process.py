"""Draws plans and shares in other processes, without Ray; killed at their deadline.

A plan has a process of its own. Shares are drawn every few seconds, all in one process that stays.
"""

import asyncio
import multiprocessing
import os
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext

from eplb_service.controller.planning import NothingToDo, PlanningInput, draft
from eplb_service.controller.sharing import Proposal, ShareTask
from eplb_service.domain.errors import EplbError, PlannerFailed, PlannerTimeout
from eplb_service.domain.plan import Plan
from eplb_service.host.share_clerk import ShareClerk, settle

JOIN_S = 5.0

Answer = Plan | NothingToDo | EplbError


class ProcessPlanRunner:
    """A controller.ports.PlanRunner over spawned processes."""

    def __init__(self) -> None:
        self._context: SpawnContext = multiprocessing.get_context("spawn")
        self._clerk = ShareClerk(self._context)

    async def share(self, task: ShareTask, *, deadline_s: float) -> Proposal | None:
        """Run sharing.propose elsewhere; raises PlannerFailed, PlannerTimeout or InvalidTable."""
        return await self._clerk.share(task, deadline_s=deadline_s)

    def close(self) -> None:
        """End the process that draws shares."""
        self._clerk.close()

    async def draw(self, task: PlanningInput, *, deadline_s: float) -> Plan | NothingToDo:
        """Run planning.draft elsewhere; raises PlannerFailed or PlannerTimeout.

        A draw that is cancelled kills its process at once.
        """
        stop, stopper = os.pipe()
        try:
            answer = await asyncio.to_thread(self._draw, task, deadline_s, stop)
        finally:
            os.close(stopper)
        if isinstance(answer, EplbError):
            raise answer
        return answer

    def _draw(self, task: PlanningInput, deadline_s: float, stop: int) -> Answer:
        here, there = self._context.Pipe(duplex=False)
        worker = self._context.Process(target=_work, args=(there, task), daemon=True)
        try:
            worker.start()
            there.close()
            if here in wait([here, stop], deadline_s):
                return here.recv()
            return PlannerTimeout(
                f"the planner did not return within {deadline_s:g} s and was killed; "
                "nothing changed, the next interval plans again"
            )
        except EOFError:
            worker.join(JOIN_S)
            return PlannerFailed(
                f"the planner process died with exit code {worker.exitcode}; "
                "nothing changed, the next interval plans again"
            )
        finally:
            here.close()
            os.close(stop)
            worker.kill()
            worker.join(JOIN_S)


def _work(answer: Connection, task: PlanningInput) -> None:
    settle()
    try:
        answer.send(draft(task))
    except EplbError as refused:
        answer.send(refused)
