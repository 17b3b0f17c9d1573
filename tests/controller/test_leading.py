"""Of two controllers over one store one leads; the other takes over when its beats stop."""

import asyncio
from contextlib import suppress

import pytest

from eplb_service.controller.leading import Leading, beat, take_the_lead
from eplb_service.controller.records import Pulse
from eplb_service.domain.errors import StoreConflict, StoreUnavailable
from eplb_service.domain.ids import Generation
from eplb_service.host.system_clock import SystemClock
from eplb_service.store.memory import MemoryBeats, MemoryStore

QUICK = Leading(beat_s=0.02, takeover_s=0.2, is_standby=True)
PATIENCE_S = 10.0


class AwayBeats(MemoryBeats):
    """Does not answer while told not to."""

    is_away = False

    async def pulse(self) -> Pulse:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().pulse()


def fail(fenced: StoreConflict) -> None:
    pytest.fail(str(fenced))


def standing_by(store: MemoryStore) -> "asyncio.Task[Generation]":
    return asyncio.create_task(take_the_lead(store, SystemClock(), QUICK))


async def test_one_that_need_not_stand_by_takes_over_at_once() -> None:
    store = MemoryStore()
    assert await take_the_lead(store, SystemClock(), Leading()) == 1
    assert await take_the_lead(store, SystemClock(), Leading()) == 2


async def test_a_standby_waits_as_long_as_the_leader_beats_and_takes_over_after_it() -> None:
    store = MemoryStore()
    leader = await store.acquire()

    async def until_fenced() -> StoreConflict:
        fenced = asyncio.get_running_loop().create_future()
        await beat(store, leader, QUICK, fenced.set_result)
        return fenced.result()

    beats = asyncio.create_task(until_fenced())
    standby = standing_by(store)
    done, _ = await asyncio.wait({standby}, timeout=5 * QUICK.takeover_s)
    assert not done, "it deposed a leader that lives"
    beats.cancel()
    with suppress(asyncio.CancelledError):
        await beats
    assert await asyncio.wait_for(standby, PATIENCE_S) == leader + 1


async def test_a_leader_that_writes_nothing_learns_all_the_same_that_it_is_fenced() -> None:
    store = MemoryStore()
    leader = await store.acquire()
    fenced = asyncio.get_running_loop().create_future()
    beats = asyncio.create_task(beat(store, leader, QUICK, fenced.set_result))
    await store.acquire()
    assert isinstance(await asyncio.wait_for(fenced, PATIENCE_S), StoreConflict)
    await asyncio.wait_for(beats, PATIENCE_S)


async def test_of_two_that_stand_by_one_takes_over_and_the_other_goes_on_waiting() -> None:
    store = MemoryStore()
    both = {standing_by(store), standing_by(store)}
    done, waiting = await asyncio.wait(
        both, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
    )
    (first,), (other,) = done, waiting
    leader = first.result()
    beats = asyncio.create_task(beat(store, leader, QUICK, fail))
    done, _ = await asyncio.wait({other}, timeout=3 * QUICK.takeover_s)
    assert not done
    assert (await store.beats.pulse()).generation == leader == 1
    for task in (other, beats):
        task.cancel()


async def test_one_that_does_not_reach_the_store_takes_nothing_over() -> None:
    store = MemoryStore()
    beats = store.beats = AwayBeats()
    await store.acquire()
    beats.is_away = True
    standby = standing_by(store)
    done, _ = await asyncio.wait({standby}, timeout=3 * QUICK.takeover_s)
    assert not done
    beats.is_away = False
    assert await asyncio.wait_for(standby, PATIENCE_S) == 2
