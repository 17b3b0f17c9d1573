"""Draws each plan in a process of its own, without Ray; killed at its deadline."""

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext

from eplb_service.controller.planning import NothingToDo, PlanningInput, draft
from eplb_service.domain.errors import EplbError, PlannerFailed, PlannerTimeout
from eplb_service.domain.plan import Plan

JOIN_S = 5.0

Answer = Plan | NothingToDo | EplbError


class ProcessPlanRunner:
    """A controller.ports.PlanRunner over spawned processes."""

    def __init__(self) -> None:
        self._context: SpawnContext = multiprocessing.get_context("spawn")

    async def draw(self, task: PlanningInput, *, deadline_s: float) -> Plan | NothingToDo:
        """Run planning.draft elsewhere; raises PlannerFailed or PlannerTimeout."""
        answer = await asyncio.to_thread(self._draw, task, deadline_s)
        if isinstance(answer, EplbError):
            raise answer
        return answer

    def _draw(self, task: PlanningInput, deadline_s: float) -> Answer:
        here, there = self._context.Pipe(duplex=False)
        worker = self._context.Process(target=_work, args=(there, task), daemon=True)
        worker.start()
        there.close()
        try:
            if not here.poll(deadline_s):
                return PlannerTimeout(
                    f"the planner did not return within {deadline_s:g} s and was killed; "
                    "nothing changed, the next interval plans again"
                )
            return here.recv()
        except EOFError:
            worker.join(JOIN_S)
            return PlannerFailed(
                f"the planner process died with exit code {worker.exitcode}; "
                "nothing changed, the next interval plans again"
            )
        finally:
            here.close()
            worker.kill()
            worker.join(JOIN_S)


def _work(answer: Connection, task: PlanningInput) -> None:
    try:
        answer.send(draft(task))
    except EplbError as refused:
        answer.send(refused)
