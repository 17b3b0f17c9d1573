"""Shares drawn in a process that stays: the same as here, and an answer in time."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from eplb_service.controller.sharing import propose
from eplb_service.domain.errors import InvalidTable, PlannerFailed, PlannerTimeout
from eplb_service.host.planner_process import ProcessPlanRunner
from tests.host.processes import await_so
from tests.host.shares import share_task

pytestmark = [pytest.mark.processes, pytest.mark.slow]

IN_TIME_S = 60.0


@pytest.fixture
async def runner() -> AsyncIterator[ProcessPlanRunner]:
    found = ProcessPlanRunner()
    yield found
    found.close()
    assert multiprocessing.active_children() == []


def clerk() -> int:
    (process,) = multiprocessing.active_children()
    assert process.pid is not None
    return process.pid


async def test_shares_are_those_that_are_drawn_here_by_one_process(
    runner: ProcessPlanRunner,
) -> None:
    here = propose(share_task())
    assert here is not None
    pids = set[int]()
    for _ in range(3):
        there = await runner.share(share_task(), deadline_s=IN_TIME_S)
        assert there is not None
        assert there.shares.tables.tolist() == here.shares.tables.tolist()
        assert there.after.tolist() == here.after.tolist()
        pids.add(clerk())
    assert len(pids) == 1
    assert os.getpriority(os.PRIO_PROCESS, clerk()) > os.getpriority(os.PRIO_PROCESS, 0)


async def test_a_task_that_makes_no_sense_is_refused_by_name_and_ends_nothing(
    runner: ProcessPlanRunner,
) -> None:
    with pytest.raises(InvalidTable):
        await runner.share(share_task(-1.0, 1.0, 1.0, 1.0), deadline_s=IN_TIME_S)
    before = clerk()
    wrong = replace(share_task(), nodes=3)
    with pytest.raises(PlannerFailed, match="drawing shares raised TypeError"):
        await runner.share(wrong, deadline_s=IN_TIME_S)
    assert await runner.share(share_task(), deadline_s=IN_TIME_S) is not None
    assert clerk() == before


async def test_a_process_that_hangs_is_killed_at_the_deadline_and_replaced(
    runner: ProcessPlanRunner,
) -> None:
    await runner.share(share_task(), deadline_s=IN_TIME_S)
    before = clerk()
    os.kill(before, signal.SIGSTOP)
    large = replace(share_task(), nodes=("a name" * 100_000,) * 2)  # more than a pipe takes unread
    with pytest.raises(PlannerTimeout, match=r"shares were not drawn within 0\.5 s"):
        await runner.share(large, deadline_s=0.5)
    assert await runner.share(share_task(), deadline_s=IN_TIME_S) is not None
    assert clerk() != before


async def test_a_process_that_dies_fails_one_draw_and_is_replaced(
    runner: ProcessPlanRunner,
) -> None:
    await runner.share(share_task(), deadline_s=IN_TIME_S)
    os.kill(clerk(), signal.SIGKILL)
    with pytest.raises(PlannerFailed, match="died with exit code -9"):
        await runner.share(share_task(), deadline_s=IN_TIME_S)
    assert await runner.share(share_task(), deadline_s=IN_TIME_S) is not None


async def test_a_draw_that_nobody_waits_for_any_more_ends_its_process(
    runner: ProcessPlanRunner,
) -> None:
    await runner.share(share_task(), deadline_s=IN_TIME_S)
    os.kill(clerk(), signal.SIGSTOP)
    drawing = asyncio.create_task(runner.share(share_task(), deadline_s=IN_TIME_S))
    await asyncio.sleep(0.1)
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    await_so(lambda: not multiprocessing.active_children(), within_s=10.0, what="it has ended")
