"""Kill -9 of the controller, or of the ranks, in the middle of staging."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from eplb_service.controller.leaving import REASON
from tests.host.processes import descendants, is_alive, named
from tests.system.world import HELD_RANK, World, require_no_step_waited

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NUM_STEPS = 200


def die_and_come_back(world: World) -> None:
    """The controller is killed in the middle of staging; a new one carries on from its store."""
    ranks, generation = world.ranks, world.operator.status().generation
    epoch = ranks.epoch
    paired = ranks.serve(NUM_STEPS)
    world.controller.kill()
    orphaned = ranks.serve(NUM_STEPS)
    require_no_step_waited(ranks.steps(*orphaned), ranks.steps(*paired))
    for seen in ranks.steps(*orphaned):
        assert {one.epoch for one in seen} == {epoch}, "switched without a controller"
    world.controller.start()
    ranks.hold_rounds(HELD_RANK, is_on=False)
    world.calm_down()
    assert world.operator.status().generation == generation + 1
    assert ranks.epoch in (epoch, epoch + 1), "the open wave settled or was dropped"
    world.settle_another()
    ranks.require_right()


def test_a_killed_controller_delays_no_step_and_its_successor_carries_on(held: World) -> None:
    die_and_come_back(held)


def test_a_decision_that_is_on_record_is_carried_out_by_the_successor(held: World) -> None:
    ranks, epoch = held.ranks, held.ranks.epoch
    ranks.lose_arms(HELD_RANK, is_on=True)
    ranks.hold_rounds(HELD_RANK, is_on=False)
    held.await_all_but_one("armed", "staged")
    held.controller.kill()
    ranks.lose_arms(HELD_RANK, is_on=False)
    orphaned = ranks.serve(NUM_STEPS // 2)
    assert {one.epoch for seen in ranks.steps(*orphaned) for one in seen} == {epoch}
    held.controller.start()
    held.calm_down()
    assert ranks.epoch == epoch + 1, "it was not carried out"
    held.settle_another()
    ranks.require_right()


def test_a_restarted_group_loads_what_was_settled_last(held: World) -> None:
    epoch = held.ranks.epoch
    held.ranks.kill()
    ranks = held.start_ranks()
    ranks.serve(20)
    assert ranks.seen[0][0].epoch == epoch, "the settled placement was not loaded at the start"
    held.calm_down()
    status = held.operator.status()
    assert status.epoch == epoch
    assert status.operation.running.phase == "stopped"
    held.settle_another()
    ranks.require_right()


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_all_of_ray_is_killed_and_comes_back(tmp_path: Path) -> None:
    with closing(World(tmp_path, "up")) as world:
        world.settle_another()
        world.ranks.hold_rounds(HELD_RANK, is_on=True)
        world.operator.move()
        world.await_all_but_one("staged", "accepted")
        family = descendants(world.controller.pid)
        names = " ".join(map(named, family))
        assert all(one in names for one in ("gcs_server", "raylet", "ControllerActor")), names
        die_and_come_back(world)
        assert not any(map(is_alive, family))
        assert world.controller.end() == 0


def test_a_controller_that_is_told_to_end_withdraws_the_wave_that_cannot_finish(
    held: World,
) -> None:
    ranks, epoch = held.ranks, held.ranks.epoch
    os.kill(held.controller.pid, signal.SIGTERM)
    ranks.serve_until(lambda: not is_alive(held.controller.pid), within_steps=8000, what="its end")
    assert held.controller.end() == 0
    ranks.hold_rounds(HELD_RANK, is_on=False)
    held.controller.start()
    held.calm_down()
    assert ranks.epoch == epoch
    assert f"aborted: {REASON}" in " ".join(held.operator.history("wave"))
    held.settle_another()
    ranks.require_right()


def test_a_controller_that_is_told_to_end_finishes_the_wave_that_can(held: World) -> None:
    ranks, epoch = held.ranks, held.ranks.epoch
    os.kill(held.controller.pid, signal.SIGTERM)
    ranks.hold_rounds(HELD_RANK, is_on=False)
    ranks.serve_until(lambda: not is_alive(held.controller.pid), within_steps=8000, what="its end")
    assert held.controller.end() == 0
    assert ranks.epoch == epoch + 1, "the wave was not finished"
    held.controller.start()
    held.settle_another()
    ranks.require_right()
