"""The driver when streams end in the middle of things, and when the code itself is wrong."""

import asyncio

import pytest

from eplb_service.controller.machine_state import RankGreeted, RankSaid, RunAsked, Ticked
from eplb_service.controller.records import DeploymentRecord, EpochRecord
from eplb_service.domain.errors import StoreUnavailable
from eplb_service.domain.ids import Generation
from eplb_service.protocol.messages import Halted, HaltStatus, Welcome
from eplb_service.store.memory import MemoryStore
from tests.controller.group import FLAT, SWAPPED, plan
from tests.controller.ranks import start_ranks
from tests.controller.test_driver import bench


class GatedStore(MemoryStore):
    """A store that registers only once its gate is open, and loses the first answer to a spend."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.num_spent = 0

    async def register(
        self, generation: Generation, record: DeploymentRecord, first: EpochRecord
    ) -> None:
        self.is_asked.set()
        await self.gate.wait()
        await super().register(generation, record, first)

    async def spend(self, generation: Generation, deployment: str, record: EpochRecord) -> None:
        await super().spend(generation, deployment, record)
        self.num_spent += 1
        if self.num_spent == 1:
            raise StoreUnavailable("the disk confirmed too late to be heard")


async def test_a_rank_is_welcomed_only_when_its_group_is_on_record() -> None:
    store = GatedStore()
    async with bench(store) as b:
        asked = asyncio.create_task(b.driver.ask(RankGreeted(b.ranks[0].greeting()), b.ranks[0]))
        await store.is_asked.wait()
        assert b.ranks[0].told == []
        store.gate.set()
        await asked
        assert [type(m) for m in b.ranks[0].told] == [Welcome]


@pytest.mark.parametrize("moment", ["it waits", "it is on its way to the store"])
async def test_a_stream_that_ends_while_its_hello_is_handled_leaves_no_rank_behind(
    moment: str,
) -> None:
    store = GatedStore()
    async with bench(store) as b:
        asked = asyncio.create_task(b.driver.ask(RankGreeted(b.ranks[0].greeting()), b.ranks[0]))
        if moment != "it waits":
            await store.is_asked.wait()
        else:
            await asyncio.sleep(0)
        asked.cancel()
        store.gate.set()
        await b.driver.ask(Ticked(0.1, 1.0))
        membership = b.driver.state.membership
        assert membership is None or not any(m.is_connected for m in membership.known)
        assert not b.driver.errands.is_current(0, b.ranks[0])


async def test_a_spending_whose_answer_was_lost_is_tried_again_and_fences_nobody() -> None:
    store = GatedStore()
    store.gate.set()
    async with bench(store) as b:
        await b.greet_all()
        await b.driver.ask(RunAsked(plan(FLAT, SWAPPED), 1, 1.0))
        assert (store.num_spent, b.fenced) == (2, [])
        await b.settle()
        assert {rank.state.served.epoch for rank in b.ranks} == {1}


async def test_words_of_a_stream_that_was_replaced_are_not_heard() -> None:
    async with bench(MemoryStore()) as b:
        await b.greet_all()
        again = start_ranks(FLAT)[0]
        await b.driver.ask(RankGreeted(again.greeting()), again)
        halt = Halted(HaltStatus(1, is_active=True, reason="said long ago"), 3)
        await b.driver.ask(RankSaid(0, 1, halt), b.ranks[0])
        assert b.driver.state.membership
        assert not any(m.status.halt.is_active for m in b.driver.state.membership.known)
        await b.driver.ask(RankSaid(0, 1, halt), again)
        assert any(m.status.halt.is_active for m in b.driver.state.membership.known)


async def test_a_fault_of_ours_is_told_to_who_asked_and_the_driver_goes_on() -> None:
    async with bench(MemoryStore()) as b:
        await b.greet_all()
        before = b.driver.state
        with pytest.raises(IndexError):
            await b.driver.ask(RankSaid(99, 1, Halted(HaltStatus(1, is_active=True, reason=""), 3)))
        assert b.driver.state is before
        await b.driver.ask(RunAsked(plan(FLAT, SWAPPED), 1, 1.0))
        await b.settle()
        assert {rank.state.served.epoch for rank in b.ranks} == {1}
