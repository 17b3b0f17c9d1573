"""The step loop waits for nobody: not for the agent's thread, the network or the store."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.system.world import HELD_RANK, World, require_no_step_waited

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NUM_STEPS = 200


def test_a_frozen_agent_thread_delays_no_step(held: World) -> None:
    ranks = held.ranks
    paired = ranks.serve(NUM_STEPS)
    ranks.freeze_agents(is_on=True)
    ranks.hold_rounds(HELD_RANK, is_on=False)  # what the step side says waits for the agent
    frozen = ranks.serve(NUM_STEPS)
    epoch = ranks.epoch
    ranks.freeze_agents(is_on=False)
    require_no_step_waited(ranks.steps(*frozen), ranks.steps(*paired))
    assert {one.epoch for one in ranks.steps(*frozen)[0]} == {epoch}, "armed by a frozen agent"
    _recovers(held, epoch)


def test_a_controller_that_answers_nothing_delays_no_step(held: World) -> None:
    ranks = held.ranks
    paired = ranks.serve(NUM_STEPS)
    for proxy in held.proxies:
        proxy.swallow()
    ranks.hold_rounds(HELD_RANK, is_on=False)
    alone = ranks.serve(NUM_STEPS)
    epoch = ranks.epoch
    assert all(one.is_migrating for one in ranks.steps(*alone)[0]), "the street was not closed"
    for proxy in held.proxies:
        proxy.forward()
    require_no_step_waited(ranks.steps(*alone), ranks.steps(*paired))
    _recovers(held, epoch)


def test_a_locked_store_delays_no_step_and_arms_nobody(held: World) -> None:
    ranks = held.ranks
    paired = ranks.serve(NUM_STEPS)
    with _locked(held):
        ranks.hold_rounds(HELD_RANK, is_on=False)
        locked = ranks.serve(NUM_STEPS)
        epoch = ranks.epoch
        phases = [rank.phase for rank in held.operator.status().ranks]
        assert phases == ["staged"] * len(phases), "the controller waits for its store"
    require_no_step_waited(ranks.steps(*locked), ranks.steps(*paired))
    assert {one.epoch for one in ranks.steps(*locked)[0]} == {epoch}, "armed without a record"
    _recovers(held, epoch)


@contextmanager
def _locked(world: World) -> Generator[None]:
    """Lock the controller's file against every writer, from this process."""
    file = sqlite3.connect(world.controller.store, isolation_level=None, timeout=5.0)
    try:
        file.execute("BEGIN IMMEDIATE")
        yield
        file.execute("ROLLBACK")
    finally:
        file.close()


def _recovers(world: World, epoch: int) -> None:
    """The wave that was held up is carried out, and so is another plan."""
    world.calm_down()
    assert world.ranks.epoch > epoch
    assert world.operator.status().operation.running.phase == "done"
    world.settle_another()
    world.ranks.require_right()
