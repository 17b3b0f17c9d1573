"""One world for all scenarios; each leaves it calm, or with a new group."""

from collections.abc import Iterator

import pytest

from tests.system.world import HELD_RANK, World


@pytest.fixture(scope="session")
def _one_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("system"))
    yield world
    world.close()


@pytest.fixture
def world(_one_world: World) -> World:
    """The world, calm."""
    _one_world.calm_down()
    return _one_world


@pytest.fixture
def held(world: World) -> Iterator[World]:
    """The world in the middle of a wave's staging, not its first: all ranks but one are done."""
    world.hold_wave()
    yield world
    world.ranks.hold_rounds(HELD_RANK, is_on=False)
    world.ranks.lose_arms(HELD_RANK, is_on=False)
