"""Plans drawn in a process: whatever a policy does, the controller gets an answer in time."""

import asyncio
import multiprocessing
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from eplb_service.controller.planning import draft
from eplb_service.domain.errors import PlannerFailed, PlannerTimeout
from eplb_service.domain.plan import Plan
from eplb_service.host.planner_process import ProcessPlanRunner
from tests.host.planted import EXIT_CODE, hot_task
from tests.host.processes import ROOT, await_so, is_alive

pytestmark = [pytest.mark.processes, pytest.mark.slow]

IN_TIME_S = 60.0


async def test_a_plan_is_the_one_that_is_drawn_here() -> None:
    task, here = hot_task(), draft(hot_task())
    plan = await ProcessPlanRunner().draw(task, deadline_s=IN_TIME_S)
    assert isinstance(plan, Plan)
    assert isinstance(here, Plan)
    assert plan.plan_id == here.plan_id
    assert [w.content.target for w in plan.waves] == [w.content.target for w in here.waves]
    assert multiprocessing.active_children() == []


async def test_a_policy_that_never_returns_is_killed_at_the_deadline() -> None:
    began_s = monotonic()
    with pytest.raises(PlannerTimeout, match=r"did not return within 1\.5 s and was killed"):
        await ProcessPlanRunner().draw(hot_task("hang"), deadline_s=1.5)
    assert monotonic() - began_s >= 1.5
    assert multiprocessing.active_children() == []


async def test_a_policy_that_raises_fails_the_plan_in_its_own_words() -> None:
    with pytest.raises(PlannerFailed, match="ZeroDivisionError: a policy's own mistake"):
        await ProcessPlanRunner().draw(hot_task("fail"), deadline_s=IN_TIME_S)
    assert multiprocessing.active_children() == []


async def test_a_policy_that_takes_the_process_away_fails_the_plan_with_its_exit_code() -> None:
    with pytest.raises(PlannerFailed, match=f"died with exit code {EXIT_CODE}"):
        await ProcessPlanRunner().draw(hot_task("die"), deadline_s=IN_TIME_S)
    assert multiprocessing.active_children() == []


async def test_a_draw_that_nobody_waits_for_any_more_ends_at_once() -> None:
    draw = asyncio.create_task(ProcessPlanRunner().draw(hot_task("hang"), deadline_s=IN_TIME_S))
    await asyncio.to_thread(
        await_so, multiprocessing.active_children, within_s=IN_TIME_S, what="a planner"
    )
    draw.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draw
    await_so(lambda: not multiprocessing.active_children(), within_s=10.0, what="it has ended")


def test_a_planner_ends_with_the_controller_that_is_killed() -> None:
    command = [sys.executable, str(Path(__file__).with_name("hanging_draw.py"))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as controller:
        try:
            assert controller.stdout is not None
            planner = int(controller.stdout.readline().split()[0])
        finally:
            controller.kill()
    await_so(lambda: not is_alive(planner), within_s=10.0, what="the planner has ended")
