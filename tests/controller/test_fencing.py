"""A controller that another has fenced finds out at its first write, whatever it is."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from eplb_service.domain.errors import NotLeader, StoreConflict
from eplb_service.store.memory import MemoryStore
from tests.controller.group import FLAT
from tests.controller.office import Office, act, office


async def freeze(o: Office) -> None:
    await o.controller.acts.freeze(act(), 60.0)


async def set_config(o: Office) -> None:
    await o.controller.acts.set_config(act(), {"gates.min_gain": "0.2"})


@pytest.mark.parametrize("write", [freeze, set_config])
async def test_an_operators_act_finds_the_fence_and_ends_the_controller(
    write: Callable[[Office], Awaitable[None]],
) -> None:
    store = MemoryStore()
    async with office(store) as o:
        await o.register(FLAT)
        await store.acquire()
        with pytest.raises(StoreConflict):
            await write(o)
        assert [rank.is_open for rank in o.ranks] == [False, False]
        with pytest.raises(NotLeader):
            await o.controller.operators.status("")


async def test_the_end_of_a_stream_is_not_waited_for_by_a_controller_that_has_ended() -> None:
    async with office() as o:
        await o.register(FLAT)
        links = o.links
    async with asyncio.timeout(5):
        for link in links:
            await link.closed()
