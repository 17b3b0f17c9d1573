"""Plans drawn as Ray tasks: whatever a policy does, the controller gets an answer in time."""

import asyncio
import os

import pytest

from eplb_service.controller.planning import draft
from eplb_service.controller.sharing import propose
from eplb_service.domain.errors import InvalidTable, PlannerFailed, PlannerTimeout
from eplb_service.domain.plan import Plan
from eplb_service.host.planner_ray import RayPlanRunner
from tests.host.planted import hot_task
from tests.host.processes import await_so, descendants, named
from tests.host.shares import share_task

pytestmark = [
    pytest.mark.ray,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("local_ray"),
]

IN_TIME_S = 60.0


async def test_a_plan_is_the_one_that_is_drawn_here() -> None:
    plan, here = await RayPlanRunner().draw(hot_task(), deadline_s=IN_TIME_S), draft(hot_task())
    assert isinstance(plan, Plan)
    assert isinstance(here, Plan)
    assert plan.plan_id == here.plan_id
    assert [w.content.target for w in plan.waves] == [w.content.target for w in here.waves]


async def test_a_policy_that_never_returns_is_killed_at_the_deadline() -> None:
    with pytest.raises(PlannerTimeout, match="did not return within 3 s and was killed"):
        await RayPlanRunner().draw(hot_task("hang"), deadline_s=3.0)
    await_so(lambda: not drawing(), within_s=30.0, what="the worker that hangs is gone")


async def test_a_draw_that_nobody_waits_for_any_more_ends() -> None:
    draw = asyncio.create_task(RayPlanRunner().draw(hot_task("hang"), deadline_s=IN_TIME_S))
    await asyncio.to_thread(await_so, drawing, within_s=IN_TIME_S, what="a worker that draws")
    draw.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draw
    await asyncio.to_thread(
        await_so, lambda: not drawing(), within_s=30.0, what="the worker is gone"
    )


async def test_a_policy_that_raises_fails_the_plan_in_its_own_words() -> None:
    with pytest.raises(PlannerFailed, match="ZeroDivisionError: a policy's own mistake"):
        await RayPlanRunner().draw(hot_task("fail"), deadline_s=IN_TIME_S)


async def test_a_policy_that_takes_the_process_away_fails_the_plan() -> None:
    with pytest.raises(PlannerFailed, match="Ray task was lost"):
        await RayPlanRunner().draw(hot_task("die"), deadline_s=IN_TIME_S)


def drawing() -> list[int]:
    """Workers of our Ray that draw a plan now; Ray names a process by its task."""
    return [pid for pid in descendants(os.getpid()) if "draw_plan" in named(pid)]


async def test_shares_are_those_that_are_drawn_here_and_a_refusal_keeps_its_name() -> None:
    here = propose(share_task())
    there = await RayPlanRunner().share(share_task(), deadline_s=IN_TIME_S)
    assert here is not None
    assert there is not None
    assert there.shares.tables.tolist() == here.shares.tables.tolist()
    with pytest.raises(InvalidTable):
        await RayPlanRunner().share(share_task(-1.0, 1.0, 1.0, 1.0), deadline_s=IN_TIME_S)
