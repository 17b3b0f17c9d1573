"""Ranks and controllers with messages of the release before, beside those of this one."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.system.controller import SERVICE
from tests.system.world import HELD_RANK, World

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_group_of_two_releases_moves_experts_and_outlives_its_controller(world: World) -> None:
    world.ranks.kill()
    ranks = world.start_ranks(older=(1, HELD_RANK))
    try:
        world.hold_wave()
        epoch = ranks.epoch
        world.controller.kill()
        ranks.serve(20)
        world.controller.start()
        ranks.hold_rounds(HELD_RANK, is_on=False)
        world.calm_down()
        assert ranks.epoch in (epoch, epoch + 1)
        world.settle_another()
        ranks.require_right()
    finally:
        ranks.kill()
        world.start_ranks()  # the other scenarios are of one release


def test_a_controller_of_the_release_before_is_replaced_in_mid_wave(tmp_path: Path) -> None:
    with closing(World(tmp_path, main="tests.system.older_service")) as world:
        ranks = world.ranks
        world.settle_another()
        world.hold_wave()
        epoch = ranks.epoch
        world.controller.kill()
        ranks.serve(20)
        world.controller.main = SERVICE
        world.controller.start()
        ranks.hold_rounds(HELD_RANK, is_on=False)
        world.calm_down()
        assert ranks.epoch in (epoch, epoch + 1)
        world.settle_another()
        ranks.require_right()
