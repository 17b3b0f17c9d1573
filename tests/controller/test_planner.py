"""Planning unasked: cycle after cycle, whatever a policy, a rank or our own code does."""

import asyncio
import gc
from dataclasses import replace

import numpy as np
import pytest

from eplb_service.controller.drawing import Drawer
from eplb_service.controller.plan_book import NUM_KEPT
from eplb_service.controller.planner import Planner
from eplb_service.controller.teller import Teller
from eplb_service.controller.views import PlanView
from eplb_service.domain.errors import PlannerFailed, UnknownPlan, UnknownPolicy
from eplb_service.host.system_clock import SystemClock
from eplb_service.protocol.messages import Dropped, DropReason
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import GateSettings, PlanningSettings, WindowSettings
from eplb_service.store.memory import MemoryStore
from tests.controller.group import FLAT, IDENTITY
from tests.controller.office import Office, act, office
from tests.controller.test_desks import ANY, EVEN, SKEWED

SETTINGS = Settings(
    planning=PlanningSettings(is_automatic=False),
    gates=GateSettings(cooldown_s=0.0),
    window=WindowSettings(report_every_steps=10, interval_steps=10, num_intervals=4),
)


class Cycles:
    """Runs automatic planning cycles of an office by hand."""

    def __init__(self, o: Office, store: MemoryStore) -> None:
        self.office, self.store = o, store
        self.teller = Teller(store=store, clock=SystemClock())
        registry = o.controller.registry
        drawer = Drawer(registry, self.teller, o.runner)
        self.planner = Planner(registry, self.teller, drawer)

    async def run(self, count: int = 1) -> None:
        deployment = self.office.controller.registry.find("")
        for _ in range(count):
            await self.planner.plan_once(deployment)

    async def history(self) -> list[str]:
        task = asyncio.create_task(self.teller.run(self.office.controller.registry.step_down))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        return [entry.text for entry in await self.store.history(IDENTITY.name, 1000)]

    def failures(self) -> float:
        return self.office.figures.values.get(("eplb_planner_failures_total", IDENTITY.name), 0.0)


async def start(o: Office, store: MemoryStore, tokens: np.ndarray = SKEWED) -> Cycles:
    await o.register(FLAT)
    o.report(tokens)
    return Cycles(o, store)


async def test_f17_a_policy_that_raises_once_costs_one_cycle() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as o:
        await o.register(FLAT)
        cycles = Cycles(o, store)
        await cycles.run()
        o.report(SKEWED)
        o.runner.failure = PlannerFailed("policy bad raised ZeroDivisionError")
        await cycles.run()
        (view,) = await o.controller.operators.status("")
        assert view.epoch == 0
        assert "ZeroDivisionError" in view.operation.planning.last_error
        o.runner.failure = None
        await cycles.run()
        await o.settle()
        await cycles.run(2)
        assert cycles.failures() == 1
        assert {rank.state.served.epoch for rank in o.ranks} == {1}


@pytest.mark.parametrize("fault", [ZeroDivisionError("ours"), UnknownPolicy("no policy magic")])
async def test_a_fault_of_ours_or_of_the_settings_is_a_failed_cycle(fault: Exception) -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as o:
        cycles = await start(o, store)
        o.runner.failure = fault
        await cycles.run(3)
        assert cycles.failures() == 3
        (view,) = await o.controller.operators.status("")
        assert str(fault) in view.operation.planning.last_error
        told = [text for text in await cycles.history() if str(fault) in text]
        assert len(told) == 1


async def test_the_same_no_is_told_once() -> None:
    store = MemoryStore()
    settings = SETTINGS.model_copy(update={"gates": GateSettings(cooldown_s=0.0, min_gain=0.9)})
    async with office(store, settings) as o:
        cycles = await start(o, store)
        await cycles.run(5)
        told = [text for text in await cycles.history() if text.startswith("plan no: gain")]
        assert len(told) == 1
        (view,) = await o.controller.operators.status("")
        assert (view.operation.planning.num_skipped, view.operation.planning.last_skip) == (
            5,
            "gain",
        )


async def test_a_rank_that_drops_every_wave_is_asked_less_and_less_often() -> None:
    store = MemoryStore()
    settings = SETTINGS.model_copy(update={"gates": GateSettings(cooldown_s=0.001)})
    async with office(store, settings) as o:
        cycles = await start(o, store)
        deployment = o.controller.registry.find("")
        await cycles.run()
        flight = deployment.driver.state.flight
        assert flight is not None
        for link in o.links:
            await link.said(Dropped(flight.record.wave, 40, DropReason.EXPIRED))
        assert deployment.num_fruitless == 1
        deployment.num_fruitless = 6
        await asyncio.sleep(0.002)
        await cycles.run()
        (view,) = await o.controller.operators.status("")
        assert view.operation.planning.last_skip == "cooldown"
        await asyncio.sleep(0.1)
        await cycles.run()
        await o.settle()
        assert deployment.num_fruitless == 0


async def test_f57_the_first_plan_waits_for_a_full_window_and_the_next_number_is_ten() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as o:
        await o.register(FLAT, epoch=9)
        o.report(SKEWED, steps=(10, 20))
        cycles = Cycles(o, store)
        await cycles.run()
        (view,) = await o.controller.operators.status("")
        assert (view.epoch, view.operation.planning.last_skip) == (9, "insufficient_samples")
        o.report(SKEWED, steps=(30, 40), first=2)
        await cycles.run()
        await o.settle()
        assert {rank.state.served.epoch for rank in o.ranks} == {10}


async def test_f55_a_dry_run_leaves_a_line_that_says_so_and_nothing_else() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as o:
        await start(o, store)
        deployment = o.controller.registry.find("")
        before = (deployment.driver.state, deployment.last_plan_ended_s, deployment.switches)
        await o.controller.operators.plan(ANY)
        after = (deployment.driver.state, deployment.last_plan_ended_s, deployment.switches)
        assert all(a is b for a, b in zip(after, before, strict=True))
        for _ in range(20):  # the line is written by a task of its own
            await asyncio.sleep(0)
        lines = (await o.controller.operators.history("", 10)).entries
        assert [(e.kind, e.epoch) for e in lines] == [("plan", 0)]
        assert lines[0].text.startswith("dry run, nothing changed: plan yes, 2 moves")


@pytest.mark.slow
async def test_f66_idle_cycles_and_dry_runs_keep_nothing_for_ever() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as o:
        cycles = await start(o, store, EVEN)
        await cycles.run(20)
        gc.collect()
        before = len(gc.get_objects())
        await cycles.run(10_000)
        gc.collect()
        assert len(gc.get_objects()) < before + 200


async def test_f66_plans_that_were_only_looked_at_are_bounded() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as o:
        await start(o, store)
        first = await o.controller.operators.plan(ANY)
        assert isinstance(first, PlanView)
        deployment = o.controller.registry.find("")
        kept = deployment.book.find(first.plan.plan_id)
        for number in range(NUM_KEPT):
            deployment.book.keep(replace(kept, plan=replace(kept.plan, plan_id=str(number))))
        with pytest.raises(UnknownPlan, match="draw a new one"):
            await o.controller.acts.apply(act(), first.plan.plan_id)


async def test_a_group_that_could_not_load_the_settled_placement_is_taken_back_to_it() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as o:
        cycles = await start(o, store)
        await cycles.run()
        await o.settle()
        settled = o.ranks[0].placement
        assert settled.digest() != FLAT.digest()
        await o.register(FLAT, incarnation=2)
        await cycles.run()
        await o.settle()
        assert {rank.placement.digest() for rank in o.ranks} == {settled.digest()}
        assert {rank.state.served.epoch for rank in o.ranks} == {2}
        assert any("return to epoch 1" in line for line in await cycles.history())


async def test_a_return_that_the_budget_forbids_is_tried_once_an_incarnation() -> None:
    store = MemoryStore()
    async with office(store, SETTINGS) as o:
        cycles = await start(o, store)
        await cycles.run()
        await o.settle()
        await o.controller.acts.set_config(act(), {"budget.max_moves": "1"})
        await o.register(FLAT, incarnation=2)
        await cycles.run(3)
        assert {rank.state.served.epoch for rank in o.ranks} == {0}
        told = [line for line in await cycles.history() if "move_budget" in line]
        assert len(told) == 1
