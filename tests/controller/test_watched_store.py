"""Whether the store answers is told of every call, those of the audit too."""

from collections.abc import Awaitable

import pytest

from eplb_service.controller.watched_store import StoreWatch, WatchedBook
from eplb_service.domain.audit import AuditEntry, Happened
from eplb_service.domain.errors import StoreConflict, StoreUnavailable
from eplb_service.domain.metric_names import STORE_UP
from eplb_service.metrics import PrometheusRecorder
from eplb_service.store import MemoryStore

HAPPENED = Happened(0.0, "otto", "freeze", "m", "for 60 s", "", "begun")


class Held(MemoryStore):
    """A store that another process holds: it can be read, not written."""

    is_held = True

    async def audit(self, happened: Happened) -> AuditEntry:
        if self.is_held:
            raise StoreUnavailable("another process holds the file; nothing was recorded")
        return await super().audit(happened)


def is_up(recorder: PrometheusRecorder) -> bool:
    (family,) = (one for one in recorder.collect() if one.name == STORE_UP.name)
    (sample,) = family.samples
    return sample.value == 1


async def test_a_write_that_failed_is_not_made_good_by_a_read() -> None:
    recorder, store = PrometheusRecorder(), Held()
    book = WatchedBook(store, StoreWatch(recorder))
    with pytest.raises(StoreUnavailable):
        await book.audit(HAPPENED)
    assert not is_up(recorder)
    await book.audited(0, 10)
    assert not is_up(recorder)
    store.is_held = False
    await book.audit(HAPPENED)
    assert is_up(recorder)


async def test_a_read_that_failed_is_made_good_by_the_next_and_a_refusal_is_an_answer() -> None:
    async def fails(error: Exception) -> None:
        raise error

    async def told(call: Awaitable[None], error: type[Exception]) -> bool:
        with pytest.raises(error):
            await watch.read(call)
        return is_up(recorder)

    recorder, store = PrometheusRecorder(), Held()
    watch = StoreWatch(recorder)
    assert not await told(fails(StoreUnavailable("no answer")), StoreUnavailable)
    assert await watch.read(store.audited(0, 10)) == ()
    assert is_up(recorder)
    assert await told(fails(StoreConflict("an older state was expected")), StoreConflict)
