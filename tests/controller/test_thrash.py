"""Loads that alternate are not followed for ever: layers that are put back are left alone."""

import asyncio

import numpy as np

from eplb_service.domain.ids import CountArray
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import GateSettings, PlanningSettings, ShareSettings, WindowSettings
from eplb_service.store.memory import MemoryStore
from tests.controller.office import Office, office
from tests.controller.test_share_loop import Floor

HOME = placement_from_ranks([[[0, 1, 2], [3, 4, 5]]], num_experts=6)
AWAY = [[0, 4, 2], [3, 1, 5]]
LEAVES = np.array([[[400, 150, 50, 200, 50, 150]], [[0] * 6]])
"""[N, L, E] tokens that are level on AWAY, and 600 to 400 on HOME."""
RETURNS = np.array([[[250, 50, 200, 220, 150, 130]], [[0] * 6]])
"""Tokens that are level on HOME, and 600 to 400 on AWAY."""
MOVES_ON = np.array([[[300, 50, 250, 200, 50, 150]], [[0] * 6]])
"""Tokens that are 600 to 400 on AWAY, and level where experts move that have not moved yet."""
SETTINGS = Settings(
    planning=PlanningSettings(is_automatic=False),
    shares=ShareSettings(is_automatic=False),
    gates=GateSettings(cooldown_s=0.0, trigger_imbalance=1.05, hold_back_s=600.0),
    window=WindowSettings(
        report_every_steps=10, sent_every_reports=1, interval_steps=10, num_intervals=4
    ),
)


async def phase(desk: Office, floor: Floor, load: CountArray) -> None:
    """Serve one load for as long as it takes to plan for it and to judge what came of it."""
    (deployment,) = desk.controller.registry.all()
    for _ in range(2):
        served = deployment.driver.state.serving.wave.epoch
        floor.serve(load, intervals=5)
        await desk.controller.planner.plan_once(deployment)
        await desk.settle(16)
        if deployment.driver.state.serving.wave.epoch != served:
            floor.restart()


async def test_loads_that_alternate_settle_and_the_thrash_is_told() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as desk:
        await desk.register(HOME)
        (deployment,), floor = desk.controller.registry.all(), Floor(desk)
        await phase(desk, floor, LEAVES)
        assert deployment.driver.state.serving.placement.phy2log.reshape(2, 3).tolist() == AWAY
        for _ in range(4):
            await phase(desk, floor, RETURNS)
            await phase(desk, floor, LEAVES)
        assert deployment.driver.state.serving.wave.epoch == 2
        assert (deployment.driver.state.serving.placement.phy2log == HOME.phy2log).all()
        assert deployment.tally.last_skip == "thrash"
        assert desk.figures.values["eplb_moves_undone_total", deployment.name] == 2
        await asyncio.sleep(0.05)
        told = [entry.text for entry in await store.history(deployment.name, 100)]
        assert sum(text.startswith("thrash: plans put back in layers [0]") for text in told) == 1


async def test_load_that_moves_on_is_followed_without_a_hold() -> None:
    async with office(settings=SETTINGS) as desk:
        await desk.register(HOME)
        (deployment,), floor = desk.controller.registry.all(), Floor(desk)
        await phase(desk, floor, LEAVES)
        await phase(desk, floor, MOVES_ON)
        assert deployment.driver.state.serving.wave.epoch == 2
        assert deployment.held_back.layers(now_s=0.0) == ()
