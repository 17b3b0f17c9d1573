"""What every store keeps of epochs and gives back; the same for SQLite and for memory."""

import pytest

from eplb_service.domain.errors import StoreConflict, UnknownEpoch
from eplb_service.domain.ids import Epoch, Revision
from eplb_service.domain.shares import Ownership
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store.judge import SETTLED_KEPT
from tests.store.conftest import Opened
from tests.store.ledger import (
    NAME,
    NEW,
    WIDER,
    assert_same,
    deployment,
    ended,
    registered,
    settle,
    start,
    uneven_shares,
    wave,
)


async def test_an_empty_store_knows_nothing(store: Opened) -> None:
    assert await store.deployments() == ()
    assert await store.recover(NAME) is None
    assert await store.epoch(NAME, Epoch(0)) is None
    assert await store.settled_before(NAME, Epoch(5)) is None
    assert await store.history(NAME, 10) == ()


async def test_a_deployment_starts_from_what_its_ranks_loaded(store: Opened) -> None:
    await registered(store)
    found = await store.recover(NAME)
    assert found is not None
    assert found.record == deployment()
    assert_same(found.settled, start())
    assert (found.open_epoch, found.open_end) == (None, None)
    assert (found.highest_epoch, found.highest_revision) == (0, 0)
    assert (found.freeze, found.settings) == (None, "{}")
    assert await store.deployments() == (NAME,)


async def test_shares_of_replicated_tokens_come_back(store: Opened) -> None:
    generation = await store.acquire()
    first = start(ownership=Ownership.REPLICATED)
    await store.register(generation, deployment(ownership=Ownership.REPLICATED), first)
    found = await store.recover(NAME)
    assert found is not None
    assert_same(found.settled, first)


async def test_a_spent_number_comes_back_with_all_that_its_orders_need(store: Opened) -> None:
    generation = await registered(store)
    record = wave(1, note="because", shares=uneven_shares())
    await store.spend(generation, NAME, record)
    found = await store.recover(NAME)
    assert found is not None
    assert found.open_end is not None
    assert_same(found.settled, start())
    assert_same(found.open_epoch, record)
    assert found.open_end.phase is WavePhase.SPENT
    assert found.highest_epoch == 1


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_number_is_never_spent_twice(store: Opened, number: int) -> None:
    generation = await registered(store)
    await store.spend(generation, NAME, wave(2))
    await store.end(generation, NAME, ended(2, WavePhase.ABORTED, reason="nack"))
    with pytest.raises(StoreConflict, match=f"epoch {number} .* 2 is the highest"):
        await store.spend(generation, NAME, wave(number))
    await store.spend(generation, NAME, wave(3))


async def test_a_spending_whose_answer_was_lost_is_done_when_it_is_tried_again(
    store: Opened,
) -> None:
    generation = await registered(store)
    await store.spend(generation, NAME, wave(1))
    await store.spend(generation, NAME, wave(1))
    found = await store.recover(NAME)
    assert found is not None
    assert_same(found.open_epoch, wave(1))
    with pytest.raises(StoreConflict, match=r"epoch 1 .* 1 is the highest"):
        await store.spend(generation, NAME, wave(1, expires=501))


async def test_of_an_aborted_epoch_only_the_number_is_kept_once_a_newer_one_is_spent(
    store: Opened,
) -> None:
    generation = await registered(store)
    await store.spend(generation, NAME, wave(1))
    await store.end(generation, NAME, ended(1, WavePhase.ABORTED, reason="no room"))
    assert await store.epoch(NAME, Epoch(1)) is not None
    await store.spend(generation, NAME, wave(2))
    assert await store.epoch(NAME, Epoch(1)) is None
    assert await store.epoch(NAME, Epoch(0)) is not None
    with pytest.raises(StoreConflict):
        await store.spend(generation, NAME, wave(1))


async def test_a_wave_that_may_have_committed_stays_open(store: Opened) -> None:
    generation = await registered(store)
    await store.spend(generation, NAME, wave(1))
    await store.end(generation, NAME, ended(1, WavePhase.MAY_COMMIT))
    found = await store.recover(NAME)
    assert found is not None
    assert found.open_end == ended(1, WavePhase.MAY_COMMIT)
    assert_same(found.settled, start())


async def test_a_committed_wave_is_what_is_served_and_stays_open(store: Opened) -> None:
    generation = await registered(store)
    await store.spend(generation, NAME, wave(1))
    await store.end(generation, NAME, ended(1, WavePhase.COMMITTED, step=40))
    found = await store.recover(NAME)
    assert found is not None
    assert_same(found.settled, wave(1))
    assert_same(found.open_epoch, wave(1))
    assert found.open_end == ended(1, WavePhase.COMMITTED, step=40)


async def test_a_settled_wave_is_closed(store: Opened) -> None:
    generation = await registered(store)
    await settle(store, generation, 1)
    found = await store.recover(NAME)
    assert found is not None
    assert_same(found.settled, wave(1))
    assert found.open_epoch is None


async def test_an_aborted_wave_stays_open_until_the_next_since_some_rank_may_not_know(
    store: Opened,
) -> None:
    generation = await registered(store)
    await store.spend(generation, NAME, wave(1))
    await store.end(generation, NAME, ended(1, WavePhase.ABORTED, reason="no room"))
    found = await store.recover(NAME)
    assert found is not None
    assert found.open_end == ended(1, WavePhase.ABORTED, reason="no room")
    assert_same(found.settled, start())
    await settle(store, generation, 2)
    found = await store.recover(NAME)
    assert found is not None
    assert found.open_epoch is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (WavePhase.SETTLED, WavePhase.ABORTED),
        (WavePhase.ABORTED, WavePhase.SETTLED),
        (WavePhase.ABORTED, WavePhase.MAY_COMMIT),
        (WavePhase.COMMITTED, WavePhase.ABORTED),
        (WavePhase.COMMITTED, WavePhase.MAY_COMMIT),
        (WavePhase.MAY_COMMIT, WavePhase.SPENT),
    ],
)
async def test_an_end_is_an_end(store: Opened, before: WavePhase, after: WavePhase) -> None:
    generation = await registered(store)
    await store.spend(generation, NAME, wave(1))
    await store.end(generation, NAME, ended(1, before))
    with pytest.raises(StoreConflict, match=f"recorded as {before} and cannot become {after}"):
        await store.end(generation, NAME, ended(1, after))
    found = await store.epoch(NAME, Epoch(1))
    assert found is not None
    assert found[1].phase is before


async def test_the_same_end_twice_keeps_the_first(store: Opened) -> None:
    generation = await registered(store)
    await store.spend(generation, NAME, wave(1))
    await store.end(generation, NAME, ended(1, WavePhase.ABORTED, reason="first"))
    await store.end(generation, NAME, ended(1, WavePhase.ABORTED, reason="second"))
    found = await store.epoch(NAME, Epoch(1))
    assert found is not None
    assert found[1].reason == "first"


async def test_the_end_of_a_number_that_was_never_spent_is_refused(store: Opened) -> None:
    generation = await registered(store)
    with pytest.raises(UnknownEpoch, match="epoch 4"):
        await store.end(generation, NAME, ended(4, WavePhase.SETTLED))
    with pytest.raises(UnknownEpoch, match="epoch 4"):
        await store.spend_revision(generation, NAME, Epoch(4), Revision(1))


async def test_revisions_are_spent_like_epochs_within_theirs(store: Opened) -> None:
    generation = await registered(store)
    await settle(store, generation, 1)
    await store.spend_revision(generation, NAME, Epoch(1), Revision(2))
    for number in (1, 2):
        with pytest.raises(StoreConflict, match=f"revision {number} of epoch 1"):
            await store.spend_revision(generation, NAME, Epoch(1), Revision(number))
    await store.spend_revision(generation, NAME, Epoch(1), Revision(3))
    found = await store.recover(NAME)
    assert found is not None
    assert found.highest_revision == 3


async def test_an_epoch_is_found_by_number_and_the_settled_one_before_it(store: Opened) -> None:
    generation = await registered(store)
    await settle(store, generation, 1)
    await store.spend(generation, NAME, wave(2))
    await store.end(generation, NAME, ended(2, WavePhase.ABORTED))
    await settle(store, generation, 3)
    found = await store.epoch(NAME, Epoch(1))
    assert found is not None
    assert_same(found[0], wave(1))
    assert found[1] == ended(1, WavePhase.SETTLED, step=10)
    assert_same(await store.settled_before(NAME, Epoch(3)), wave(1))
    assert_same(await store.settled_before(NAME, Epoch(1)), start())
    assert await store.settled_before(NAME, Epoch(0)) is None


@pytest.mark.slow
async def test_old_placements_are_forgotten_but_never_their_numbers(store: Opened) -> None:
    generation = await registered(store)
    last = SETTLED_KEPT + 3
    for epoch in range(1, last + 1):
        await store.spend(generation, NAME, wave(epoch))
        await store.end(generation, NAME, ended(epoch, WavePhase.SETTLED))
    kept = [e for e in range(last + 1) if await store.epoch(NAME, Epoch(e)) is not None]
    assert kept == list(range(last - SETTLED_KEPT + 1, last + 1))
    with pytest.raises(StoreConflict):
        await store.spend(generation, NAME, wave(1))
    with pytest.raises(StoreConflict):
        await store.end(generation, NAME, ended(1, WavePhase.ABORTED))


async def test_a_group_that_restarts_into_an_old_placement_is_led_back(store: Opened) -> None:
    generation = await registered(store)
    await settle(store, generation, 1)
    await store.register(generation, deployment(incarnation=2), start())
    found = await store.recover(NAME)
    assert found is not None
    assert found.record.incarnation == 2
    assert_same(found.settled, wave(1))


async def test_a_group_that_restarts_with_another_shape_starts_anew(store: Opened) -> None:
    generation = await registered(store)
    await settle(store, generation, 1)
    await store.spend(generation, NAME, wave(2))
    await store.register(generation, deployment(incarnation=2), start(WIDER))
    found = await store.recover(NAME)
    assert found is not None
    assert_same(found.settled, start(WIDER))
    assert (found.open_epoch, found.highest_epoch) == (None, 2)
    with pytest.raises(StoreConflict):
        await store.spend(generation, NAME, wave(2, expires=501))
    await settle(store, generation, 3)
    found = await store.recover(NAME)
    assert found is not None
    assert_same(found.settled, wave(3))


async def test_a_placement_served_under_a_higher_number_is_taken_as_settled(store: Opened) -> None:
    generation = await registered(store)
    await store.register(generation, deployment(incarnation=2), start(NEW, epoch=7))
    found = await store.recover(NAME)
    assert found is not None
    assert_same(found.settled, start(NEW, epoch=7))
    assert found.highest_epoch == 7
