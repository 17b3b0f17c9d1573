"""The driver carries a plan through to every rank, whatever the store does meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from eplb_service.clock import ManualClock
from eplb_service.controller.driver import DeploymentDriver, Hooks
from eplb_service.controller.errands import Cadence, Errands
from eplb_service.controller.machine import begin
from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    PlanEnded,
    PlanPhase,
    RankGreeted,
    RankSaid,
    RunAsked,
    Ticked,
    WaveEnded,
)
from eplb_service.controller.records import EpochEnd, EpochRecord
from eplb_service.controller.recovery import recovered_state
from eplb_service.domain.errors import NotLeader, StaleMessage, StoreConflict, StoreUnavailable
from eplb_service.domain.ids import Generation
from eplb_service.protocol.messages import Order, Welcome, Word
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store.memory import MemoryStore
from tests.controller.group import FLAT, IDENTITY, PACE, SWAPPED, plan
from tests.controller.ranks import FakeRank, agree, start_ranks, take_words


class Bench:
    """A driver with its ranks and everything it was heard to do."""

    def __init__(self, driver: DeploymentDriver, ranks: list[FakeRank]) -> None:
        self.driver, self.ranks = driver, ranks
        self.effects: list[Effect] = []
        self.fenced: list[StoreConflict] = []

    async def greet_all(self) -> None:
        for rank in self.ranks:
            await self.driver.ask(RankGreeted(rank.greeting()), rank)

    async def settle(self, *, agreements: int = 12) -> None:
        """Let the group agree and deliver its words, a few times."""
        for _ in range(agreements):
            said: list[tuple[int, Word]] = []
            take_words(self.ranks, lambda rank, word, out=said: out.append((rank, word)))
            for rank, word in said:
                incarnation = self.ranks[rank].state.incarnation
                await self.driver.ask(RankSaid(rank, incarnation, word))
            agree(self.ranks)

    def ended(self) -> list[tuple[PlanPhase, int]]:
        return [(e.phase, e.num_settled) for e in self.effects if isinstance(e, PlanEnded)]


@asynccontextmanager
async def bench(
    store: MemoryStore, *, ranks: list[FakeRank] | None = None, recover: bool = False
) -> AsyncGenerator[Bench]:
    ranks = start_ranks(FLAT) if ranks is None else ranks
    generation: Generation = await store.acquire()
    seen: list[Effect] = []
    fenced: list[StoreConflict] = []

    def note(effect: Effect, state: DeploymentState) -> None:
        assert state.membership
        seen.append(effect)

    if recover:
        (name,) = await store.deployments()
        found = await store.recover(name)
        assert found
        state = recovered_state(found, pace=PACE, now_s=0.0)
    else:
        state = begin(ranks[0].greeting(), pace=PACE, now_s=0.0)
    driver = DeploymentDriver(
        state,
        errands=Errands(
            IDENTITY.name,
            generation=generation,
            store=store,
            clock=ManualClock(),
            cadence=Cadence(8, 10),
        ),
        hooks=Hooks(note, fenced.append),
    )
    made = Bench(driver, ranks)
    made.effects, made.fenced = seen, fenced
    task = asyncio.create_task(driver.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_rank_is_welcomed_before_it_gets_an_order() -> None:
    async with bench(MemoryStore()) as b:
        await b.greet_all()
        await b.driver.ask(RunAsked(plan(FLAT, SWAPPED), 1, 1.0))
        assert [type(m) for m in b.ranks[0].told] == [Welcome, Order]


async def test_a_plan_is_carried_to_every_rank() -> None:
    async with bench(MemoryStore()) as b:
        await b.greet_all()
        await b.driver.ask(RunAsked(plan(FLAT, SWAPPED, FLAT), 2, 1.0))
        await b.settle(agreements=20)
        assert b.ended() == [(PlanPhase.DONE, 2)]
        assert {rank.state.served.epoch for rank in b.ranks} == {2}
        assert all(r.placement.digest() == FLAT.digest() for r in b.ranks)


async def test_what_was_settled_is_found_by_the_next_controller() -> None:
    store, ranks = MemoryStore(), start_ranks(FLAT)
    async with bench(store, ranks=ranks) as b:
        await b.greet_all()
        await b.driver.ask(RunAsked(plan(FLAT, SWAPPED), 1, 1.0))
        await b.settle()
    async with bench(store, ranks=ranks, recover=True) as b:
        await b.greet_all()
        assert b.driver.state.serving.wave.epoch == 1
        assert b.driver.state.serving.placement.digest() == SWAPPED.digest()
        await b.driver.ask(RunAsked(plan(SWAPPED, FLAT, plan_id="p2"), 1, 1.0))
        await b.settle()
        assert {rank.state.served.epoch for rank in b.ranks} == {2}


async def test_a_controller_that_dies_in_mid_wave_is_taken_over() -> None:
    store, ranks = MemoryStore(), start_ranks(FLAT)
    async with bench(store, ranks=ranks) as b:
        await b.greet_all()
        await b.driver.ask(RunAsked(plan(FLAT, SWAPPED), 1, 1.0))
    agree(ranks)
    async with bench(store, ranks=ranks, recover=True) as b:
        await b.greet_all()
        await b.settle()
        ended = [e for e in b.effects if isinstance(e, WaveEnded)]
        assert [(e.record.wave.epoch, e.phase) for e in ended] == [(1, WavePhase.SETTLED)]


async def test_an_older_controller_is_fenced_and_says_so() -> None:
    store = MemoryStore()
    async with bench(store) as old:
        await old.greet_all()
        await store.acquire()
        with pytest.raises(StoreConflict):
            await old.driver.ask(RunAsked(plan(FLAT, SWAPPED), 1, 1.0))
        assert len(old.fenced) == 1
        assert not [m for m in old.ranks[0].told if isinstance(m, Order)]
        for _ in range(2):  # nobody waits for a driver that handles nothing more
            with pytest.raises(NotLeader):
                async with asyncio.timeout(5):
                    await old.driver.ask(Ticked(0.1, 1.0))
        assert not old.driver.offer(Ticked(0.1, 1.0))


async def test_who_waits_for_a_controller_that_ends_hears_that_it_leads_no_more() -> None:
    store = StuckStore()
    async with bench(store) as b:
        await b.greet_all()
        asked = [
            asyncio.create_task(b.driver.ask(event))
            for event in (RunAsked(plan(FLAT, SWAPPED), 1, 1.0), Ticked(0.1, 1.0))
        ]
        async with asyncio.timeout(5):
            await store.is_asked.wait()
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotLeader, NotLeader]


class StuckStore(MemoryStore):
    """A store that never answers when a number is to be spent."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def spend(self, generation: Generation, deployment: str, record: EpochRecord) -> None:
        self.is_asked.set()
        await asyncio.Event().wait()
        await super().spend(generation, deployment, record)


class SlowStore(MemoryStore):
    """A store that does not answer the first time it is asked to record a phase."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 2

    async def end(self, generation: Generation, deployment: str, end: EpochEnd) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("the store is locked")
        await super().end(generation, deployment, end)


async def test_nothing_passes_a_record_that_the_store_has_not_taken() -> None:
    store = SlowStore()
    async with bench(store) as b:
        await b.greet_all()
        await b.driver.ask(RunAsked(plan(FLAT, SWAPPED), 1, 1.0))
        await b.settle()
        assert store.refusals == 0
        assert b.ended() == [(PlanPhase.DONE, 1)]


async def test_a_refused_hello_changes_nothing() -> None:
    async with bench(MemoryStore()) as b:
        await b.greet_all()
        stale = start_ranks(FLAT, incarnation=0)[0]
        with pytest.raises(StaleMessage):
            await b.driver.ask(RankGreeted(stale.greeting()), stale)
        assert stale.told == []
        await b.driver.ask(RunAsked(plan(FLAT, SWAPPED), 1, 1.0))
        await b.settle()
        assert b.ended() == [(PlanPhase.DONE, 1)]


async def test_a_newer_stream_of_a_rank_takes_the_older_ones_place() -> None:
    async with bench(MemoryStore()) as b:
        await b.greet_all()
        again = start_ranks(FLAT)[0]
        await b.driver.ask(RankGreeted(again.greeting()), again)
        assert not b.ranks[0].is_open
        assert "newer stream" in b.ranks[0].close_reason
        assert not b.driver.errands.disconnect(0, b.ranks[0])
        assert b.driver.errands.disconnect(0, again)
