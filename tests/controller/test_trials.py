"""A plan is judged on the windows after it; a worse one is taken back once, and not again."""

import asyncio

import numpy as np

from eplb_service.controller.deployment import Deployment, OnTrial
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.gates.trial import Trial
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import GateSettings, PlanningSettings, ShareSettings, WindowSettings
from eplb_service.store.memory import MemoryStore
from tests.controller.office import Office, office

GOOD = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)
BAD = placement_from_ranks([[[0, 2], [1, 3]]], num_experts=4)
LOAD = {0: 400, 1: 100, 2: 400, 3: 100}
"""Tokens by expert: level on GOOD, 800 to 200 on BAD."""
SETTINGS = Settings(
    planning=PlanningSettings(is_automatic=False, policy="static"),
    shares=ShareSettings(is_automatic=False),
    gates=GateSettings(cooldown_s=0.0, trigger_imbalance=9.0, trigger_worst_layer=9.0),
    window=WindowSettings(report_every_steps=10, interval_steps=10, num_intervals=4),
)


def on_trial(deployment: Deployment, *, promised: float = 0.5, may_roll_back: bool = True) -> None:
    """Put the deployment where an automatic plan has just gone from GOOD to what is served."""
    trial = Trial("feed", promised, paces=(), is_rollback=False)
    epoch = deployment.driver.state.serving.wave.epoch
    deployment.trial = OnTrial(trial, GOOD, epoch, may_roll_back=may_roll_back)


def serve(desk: Office, *, first: int) -> None:
    """Report three intervals of LOAD from interval `first` on."""
    row = desk.ranks[0].placement.phy2log[0].tolist()
    tokens = np.array([[LOAD[expert] for expert in row]], dtype=np.int64)
    steps = [10 * (first + number + 1) for number in range(5)]
    desk.report(tokens, steps=steps, first=first)


async def cycle(desk: Office) -> None:
    """One planning cycle, and whatever it starts."""
    (deployment,) = desk.controller.registry.all()
    await desk.controller.planner.plan_once(deployment)
    await desk.settle(16)


async def lines(store: MemoryStore, deployment: Deployment) -> list[str]:
    await asyncio.sleep(0.05)
    return [entry.text for entry in reversed(await store.history(deployment.name, 50))]


async def test_a_plan_that_two_windows_say_is_worse_is_rolled_back_once() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as desk:
        await desk.register(BAD)
        (deployment,) = desk.controller.registry.all()
        serve(desk, first=0)
        on_trial(deployment)
        await cycle(desk)
        assert {rank.state.served.epoch for rank in desk.ranks} == {0}, "one window is not enough"
        assert deployment.tally.last_skip == "on_trial"
        serve(desk, first=5)
        await cycle(desk)
        assert {rank.state.served.epoch for rank in desk.ranks} == {1}
        assert all((rank.placement.phy2log == GOOD.phy2log).all() for rank in desk.ranks)
        told = await lines(store, deployment)
        assert any(line.startswith("plan judged worse: imbalance 1.600") for line in told)
        assert any("roll back plan feed" in line for line in told)
        assert deployment.kept_promises == (0.0,)
        assert deployment.trial is not None
        assert not deployment.trial.may_roll_back


async def test_a_plan_that_an_operator_asked_for_is_judged_and_stays() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as desk:
        await desk.register(BAD)
        (deployment,) = desk.controller.registry.all()
        on_trial(deployment, may_roll_back=False)
        for first in (0, 5):
            serve(desk, first=first)
            await cycle(desk)
        assert {rank.state.served.epoch for rank in desk.ranks} == {0}
        assert any("plan judged worse" in line for line in await lines(store, deployment))


async def test_a_plan_that_kept_its_promise_is_believed_again() -> None:
    async with office(settings=SETTINGS) as desk:
        await desk.register(GOOD)
        (deployment,) = desk.controller.registry.all()
        on_trial(deployment)
        trial = deployment.trial
        assert trial is not None
        deployment.trial = OnTrial(trial.trial, BAD, trial.epoch, may_roll_back=True)
        serve(desk, first=0)
        await cycle(desk)
        assert deployment.trial is None
        assert deployment.kept_promises == (1.0,)
