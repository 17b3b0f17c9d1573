"""A controller that is told to end lets the running wave finish, or withdraws it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from eplb_service.controller.leaving import REASON
from eplb_service.controller.registry import Tools
from eplb_service.controller.shell import Controller
from eplb_service.controller.views import PlanView
from eplb_service.domain.ids import Epoch
from eplb_service.host.system_clock import SystemClock
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.settings.tuner import SettingsTuner
from eplb_service.store.memory import MemoryStore
from tests.controller.office import SETTINGS, Figures, HereRunner, Office, act
from tests.controller.test_desks import ANY, ready

LONG_S = 30.0
FIRST = Epoch(1)


@asynccontextmanager
async def in_mid_wave(store: MemoryStore) -> AsyncGenerator["tuple[Office, asyncio.Task[None]]"]:
    """A controller whose wave has left; also the task of its life."""
    figures, runner = Figures(), HereRunner()
    tools = Tools(store, SystemClock(), figures, SettingsTuner(SETTINGS))
    controller = Controller(tools, archive=store, runner=runner)
    leads = asyncio.Event()

    async def leading() -> None:
        leads.set()

    life = asyncio.create_task(controller.run(leading))
    await asyncio.wait_for(leads.wait(), 5)
    try:
        office = Office(controller, figures, runner)
        await ready(office)
        assert isinstance(await controller.acts.rebalance(act(), ANY), PlanView)
        yield office, life
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def ended_as(store: MemoryStore) -> tuple[WavePhase, str]:
    (name,) = await store.deployments()
    found = await store.epoch(name, FIRST)
    assert found is not None
    return found[1].phase, found[1].reason


async def test_a_wave_that_can_finish_in_time_is_finished() -> None:
    store = MemoryStore()
    async with in_mid_wave(store) as (office, life):
        assert office.controller.leave(LONG_S)
        assert not office.controller.leave(LONG_S), "told twice"
        await office.settle()
        await asyncio.wait_for(life, LONG_S / 2)
        assert {rank.state.served.epoch for rank in office.ranks} == {FIRST}
    assert (await ended_as(store))[0] is WavePhase.SETTLED


async def test_a_wave_that_does_not_finish_is_withdrawn_from_every_rank() -> None:
    store = MemoryStore()
    async with in_mid_wave(store) as (office, life):
        office.controller.leave(0.0)
        while not life.done():
            await office.settle(1)
            await asyncio.sleep(0.01)
        await life
        assert {rank.state.served.epoch for rank in office.ranks} == {Epoch(0)}
        assert all(rank.state.held is None for rank in office.ranks)
    assert await ended_as(store) == (WavePhase.ABORTED, REASON)


async def test_ranks_that_do_not_answer_keep_nobody_from_ending() -> None:
    store = MemoryStore()
    async with in_mid_wave(store) as (office, life):
        office.controller.leave(0.0)
        await asyncio.wait_for(life, LONG_S / 2)
    assert await ended_as(store) == (WavePhase.ABORTED, REASON)


async def test_one_that_does_not_lead_has_nothing_to_leave() -> None:
    tools = Tools(MemoryStore(), SystemClock(), Figures(), SettingsTuner(SETTINGS))
    assert not Controller(tools, archive=MemoryStore(), runner=HereRunner()).leave(LONG_S)
