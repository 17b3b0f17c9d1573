"""Shares drawn in a process that stays: the same as here, and an answer in time."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from eplb_service.controller.sharing import ShareTask, propose
from eplb_service.domain.errors import InvalidTable, PlannerFailed, PlannerTimeout
from eplb_service.domain.heat import Heat
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.shares import Ownership
from eplb_service.host.planner_process import ProcessPlanRunner
from tests.host.processes import await_so

pytestmark = [pytest.mark.processes, pytest.mark.slow]

IN_TIME_S = 60.0
JOINED = placement_from_ranks([[[0, 1, 2], [3, 0, 2]]], num_experts=4)


def task(*hottest: float) -> ShareTask:
    """Experts 0 and 2 sit on both ranks; even shares leave the ranks uneven."""
    tokens = np.array([hottest or (300.0, 700.0, 400.0, 0.0)])
    heat = Heat(tokens, None, 100, 1.0)
    return ShareTask(heat, JOINED, Ownership.OWN, None, (), 0.01, 0.0, is_even=True)


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
    here = propose(task())
    assert here is not None
    pids = set[int]()
    for _ in range(3):
        there = await runner.share(task(), deadline_s=IN_TIME_S)
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
        await runner.share(task(-1.0, 1.0, 1.0, 1.0), deadline_s=IN_TIME_S)
    before = clerk()
    wrong = replace(task(), nodes=3)
    with pytest.raises(PlannerFailed, match="drawing shares raised TypeError"):
        await runner.share(wrong, deadline_s=IN_TIME_S)
    assert await runner.share(task(), deadline_s=IN_TIME_S) is not None
    assert clerk() == before


async def test_a_process_that_hangs_is_killed_at_the_deadline_and_replaced(
    runner: ProcessPlanRunner,
) -> None:
    await runner.share(task(), deadline_s=IN_TIME_S)
    before = clerk()
    os.kill(before, signal.SIGSTOP)
    large = replace(task(), nodes=("a name" * 100_000,) * 2)  # more than a pipe takes unread
    with pytest.raises(PlannerTimeout, match=r"shares were not drawn within 0\.5 s"):
        await runner.share(large, deadline_s=0.5)
    assert await runner.share(task(), deadline_s=IN_TIME_S) is not None
    assert clerk() != before


async def test_a_process_that_dies_fails_one_draw_and_is_replaced(
    runner: ProcessPlanRunner,
) -> None:
    await runner.share(task(), deadline_s=IN_TIME_S)
    os.kill(clerk(), signal.SIGKILL)
    with pytest.raises(PlannerFailed, match="died with exit code -9"):
        await runner.share(task(), deadline_s=IN_TIME_S)
    assert await runner.share(task(), deadline_s=IN_TIME_S) is not None


async def test_a_draw_that_nobody_waits_for_any_more_ends_its_process(
    runner: ProcessPlanRunner,
) -> None:
    await runner.share(task(), deadline_s=IN_TIME_S)
    os.kill(clerk(), signal.SIGSTOP)
    drawing = asyncio.create_task(runner.share(task(), deadline_s=IN_TIME_S))
    await asyncio.sleep(0.1)
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    await_so(lambda: not multiprocessing.active_children(), within_s=10.0, what="it has ended")
