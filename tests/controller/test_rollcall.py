"""Ranks that are away are told of, with the experts that only they hold."""

import asyncio

from eplb_service.controller.rollcall import degraded
from eplb_service.domain.placement import placement_from_ranks
from tests.controller.office import office
from tests.controller.test_desks import ready

LOOKS = 80
LOOK_S = 0.1


def test_f42_a_rank_that_dies_leaves_a_gap_only_where_it_held_the_only_replica() -> None:
    placed = placement_from_ranks([[[0, 1, 2], [3, 4, 5], [0, 3, 5]]], num_experts=6)
    told = degraded(placed, (1,))
    assert told == "degraded: rank 1 is away, and no other rank holds expert 4 of layer 0"
    assert degraded(placed, (2,)) == ("rank 2 is away; every expert has a replica on another rank")


def test_f42_a_long_list_of_experts_is_cut_short() -> None:
    placed = placement_from_ranks([[list(range(20)), list(range(20, 40))]], num_experts=40)
    assert degraded(placed, (0,)).endswith("7 of layer 0 and 12 more")


async def test_status_tells_of_nobody_while_all_are_there() -> None:
    async with office() as o:
        await ready(o)
        [view] = await o.controller.operators.status("")
        assert not view.operation.degraded


async def test_a_rank_whose_stream_ends_is_told_of_in_the_history() -> None:
    async with office() as o:
        await ready(o)
        await o.links[1].closed()
        [view] = await o.controller.operators.status("")
        assert view.operation.degraded.startswith("degraded: rank 1 is away, and no other rank")
        for _ in range(LOOKS):
            await asyncio.sleep(LOOK_S)
            told = (await o.controller.operators.history("", 10)).entries
            if any("degraded: rank 1 is away" in entry.text for entry in told):
                return
    raise AssertionError("nobody was told")
