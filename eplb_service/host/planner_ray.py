"""Draws plans and shares as Ray tasks with a deadline, anywhere in the cluster."""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false

import asyncio
from typing import TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from eplb_service.controller.planning import NothingToDo, PlanningInput, draft
from eplb_service.controller.sharing import Proposal, ShareTask, propose
from eplb_service.domain.errors import EplbError, PlannerFailed, PlannerTimeout
from eplb_service.domain.plan import Plan

Answer = Plan | NothingToDo | EplbError
Drawn = TypeVar("Drawn")


@ray.remote(max_retries=0, num_cpus=0)
def draw_plan(task: PlanningInput) -> Answer:
    """Run planning.draft on a Ray worker; a refusal is an answer, not a crash."""
    try:
        return draft(task)
    except EplbError as refused:
        return refused


@ray.remote(max_retries=0, num_cpus=0)
def draw_shares(task: ShareTask) -> Proposal | EplbError | None:
    """Run sharing.propose on a Ray worker; a refusal is an answer here too."""
    try:
        return propose(task)
    except EplbError as refused:
        return refused


class RayPlanRunner:
    """A controller.ports.PlanRunner over Ray tasks."""

    async def draw(self, task: PlanningInput, *, deadline_s: float) -> Plan | NothingToDo:
        """Run planning.draft elsewhere; raises PlannerFailed or PlannerTimeout.

        A draw that is cancelled ends its task.
        """
        return await _answer(draw_plan.remote(task), deadline_s)

    async def share(self, task: ShareTask, *, deadline_s: float) -> Proposal | None:
        """Run sharing.propose elsewhere; raises as `draw` does, and InvalidTable."""
        return await _answer(draw_shares.remote(task), deadline_s)

    def close(self) -> None:
        """Do nothing: a task that runs ends with the actor that asked for it."""


async def _answer(reference: "ray.ObjectRef[Drawn | EplbError]", deadline_s: float) -> Drawn:
    """Wait for what a task returns; raises PlannerFailed, PlannerTimeout, or a refusal."""
    try:
        answer = await asyncio.wait_for(asyncio.wrap_future(reference.future()), deadline_s)
    except asyncio.CancelledError:
        ray.cancel(reference, force=True)
        raise
    except (TimeoutError, GetTimeoutError) as late:
        ray.cancel(reference, force=True)
        raise PlannerTimeout(
            f"the planner did not return within {deadline_s:g} s and was killed; "
            "nothing changed, the next interval plans again"
        ) from late
    except RayTaskError as failed:
        raise PlannerFailed(
            f"the planner raised {failed.cause!r}; nothing changed, the next interval plans again"
        ) from failed
    except RayError as lost:
        raise PlannerFailed(
            f"the planner's Ray task was lost: {lost}; nothing changed, "
            "the next interval plans again"
        ) from lost
    if isinstance(answer, EplbError):
        raise answer
    return answer
