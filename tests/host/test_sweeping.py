"""Old objects are not looked through in the middle of reports, and garbage goes all the same."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from eplb_service.host.sweeping import swept_seldom


class Link:
    def __init__(self) -> None:
        self.other = self


def swept_all() -> int:
    return gc.get_stats()[2]["collections"]


def held(number: int) -> list[list[int]]:
    """So many objects that stay, as reports in windows do."""
    return [[one] for one in range(number)]


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    assert gc.get_threshold() == before


async def test_objects_that_stay_are_not_looked_through_while_they_come() -> None:
    def looked_through() -> int:
        before = swept_all()
        kept = held(400_000)
        return swept_all() - before if kept else 0

    assert looked_through() > 0, "it is not seen here what the rule is for"
    async with swept_seldom():
        assert looked_through() == 0


async def test_old_garbage_in_cycles_goes_by_the_next_sweep() -> None:
    gone = asyncio.Event()
    async with swept_seldom(every_s=0.05):
        link = Link()
        weakref.finalize(link, gone.set)
        for _ in range(3):
            gc.collect(1)  # now it is old
        del link
        gc.collect(1)
        assert not gone.is_set()
        await gone.wait()
