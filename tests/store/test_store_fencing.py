"""Who may write to a store, and what operators leave there; the same for SQLite and for memory."""

import asyncio

import pytest

from eplb_service.controller.records import (
    DrainNote,
    Freeze,
    FreezeNote,
    HistoryEntry,
    Pulse,
    SettingsNote,
)
from eplb_service.domain.errors import StoreConflict, UnknownDeployment
from eplb_service.domain.ids import Epoch, Generation, Revision
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store.judge import HISTORY_KEPT
from tests.store.conftest import Open, Opened
from tests.store.ledger import (
    NAME,
    OLD,
    deployment,
    ended,
    registered,
    start,
    wave,
)


async def test_every_acquisition_is_a_higher_generation(open_again: Open) -> None:
    one, other = open_again(), open_again()
    got = [await one.acquire(), await other.acquire(), await one.acquire()]
    assert got == [1, 2, 3]


async def test_every_write_of_a_fenced_controller_is_refused_and_leaves_no_trace(
    open_again: Open,
) -> None:
    old, new = open_again(), open_again()
    fenced = await registered(old)
    await old.spend(fenced, NAME, wave(1))
    leader = await new.acquire()
    writes = [
        lambda: old.register(fenced, deployment(incarnation=2), start(epoch=9)),
        lambda: old.spend(fenced, NAME, wave(2)),
        lambda: old.end(fenced, NAME, ended(1, WavePhase.SETTLED)),
        lambda: old.spend_revision(fenced, NAME, Epoch(1), Revision(1)),
        lambda: old.keep(fenced, NAME, SettingsNote('{"a": 1}')),
    ]
    for write in writes:
        with pytest.raises(StoreConflict, match=f"generation {fenced} .* generation {leader} has"):
            await write()
    found = await new.recover(NAME)
    assert found is not None
    assert found.open_end is not None
    assert found.open_end.phase is WavePhase.SPENT
    assert (found.highest_epoch, found.settings, found.record.incarnation) == (1, "{}", 1)
    await new.spend(leader, NAME, wave(2))


async def test_beats_are_counted_by_generation_and_seen_by_those_who_stand_by(
    open_again: Open,
) -> None:
    leader, watcher = open_again(), open_again()
    assert await watcher.beats.pulse() == Pulse(Generation(0), 0)
    generation = await leader.acquire()
    assert await watcher.beats.pulse() == Pulse(generation, 0)
    for _ in range(3):
        await leader.beats.give(generation)
    assert await watcher.beats.pulse() == Pulse(generation, 3)
    assert await watcher.acquire() == generation + 1
    with pytest.raises(StoreConflict, match="has taken over"):
        await leader.beats.give(generation)
    assert await watcher.beats.pulse() == Pulse(Generation(generation + 1), 0)


async def test_of_two_that_stand_by_one_follows_the_leader(open_again: Open) -> None:
    former, one, other = open_again(), open_again(), open_again()
    seen = await former.acquire()
    assert await one.acquire(seen) == seen + 1
    with pytest.raises(StoreConflict, match=f"generation {seen + 1} has followed it"):
        await other.acquire(seen)
    assert await other.beats.pulse() == Pulse(Generation(seen + 1), 0)


async def test_a_generation_that_was_never_given_out_is_refused(store: Opened) -> None:
    generation = await registered(store)
    with pytest.raises(StoreConflict, match="emptied or replaced"):
        await store.spend(Generation(generation + 1), NAME, wave(1))


async def test_writes_for_a_deployment_that_nobody_registered_are_refused(store: Opened) -> None:
    generation = await store.acquire()
    with pytest.raises(UnknownDeployment, match=NAME):
        await store.spend(generation, NAME, wave(1))
    for note in (FreezeNote(None), SettingsNote("{}"), HistoryEntry(1.0, "plan", "p", 1, "")):
        with pytest.raises(UnknownDeployment):
            await store.keep(generation, NAME, note)


async def test_drained_ranks_outlive_the_controller(open_again: Open) -> None:
    generation = await registered(open_again())
    await open_again().keep(generation, NAME, DrainNote((1, 5)))
    found = await open_again().recover(NAME)
    assert found is not None
    assert found.drained == (1, 5)
    await open_again().keep(generation, NAME, DrainNote(()))
    found = await open_again().recover(NAME)
    assert found is not None
    assert found.drained == ()


async def test_a_freeze_outlives_the_controller_and_can_be_lifted(open_again: Open) -> None:
    generation = await registered(open_again())
    freeze = Freeze(2000.0, "ana", "release day")
    await open_again().keep(generation, NAME, FreezeNote(freeze))
    found = await open_again().recover(NAME)
    assert found is not None
    assert found.freeze == freeze
    await open_again().keep(generation, NAME, FreezeNote(None))
    found = await open_again().recover(NAME)
    assert found is not None
    assert found.freeze is None


async def test_settings_replace_those_before(store: Opened) -> None:
    generation = await registered(store)
    await store.keep(generation, NAME, SettingsNote('{"a": 1}'))
    await store.keep(generation, NAME, SettingsNote('{"b": 2}'))
    found = await store.recover(NAME)
    assert found is not None
    assert found.settings == '{"b": 2}'


@pytest.mark.slow
async def test_history_is_newest_first_and_bounded(store: Opened) -> None:
    generation = await registered(store)
    await store.register(generation, deployment(name="b"), start())
    other = deployment(name="b").identity.name
    await store.keep(generation, other, HistoryEntry(0.0, "plan", "", 0, "of another"))
    for at in range(HISTORY_KEPT + 5):
        await store.keep(
            generation, NAME, HistoryEntry(float(at), "wave", f"p{at}", at, "t", "ada")
        )
    newest = await store.history(NAME, 2)
    assert [entry.epoch for entry in newest] == [HISTORY_KEPT + 4, HISTORY_KEPT + 3]
    assert newest[0] == HistoryEntry(HISTORY_KEPT + 4.0, "wave", "p1004", 1004, "t", "ada")
    everything = await store.history(NAME, 10 * HISTORY_KEPT)
    assert (len(everything), everything[-1].epoch) == (HISTORY_KEPT, 5)
    assert len(await store.history(other, 10)) == 1


async def test_an_older_incarnation_cannot_register(store: Opened) -> None:
    generation = await store.acquire()
    await store.register(generation, deployment(incarnation=5), start())
    with pytest.raises(StoreConflict, match=r"incarnation 4 .* older than 5"):
        await store.register(generation, deployment(incarnation=4), start(OLD, epoch=9))
    found = await store.recover(NAME)
    assert found is not None
    assert (found.record.incarnation, found.highest_epoch) == (5, 0)


async def test_of_concurrent_spenders_of_one_number_exactly_one_wins(open_again: Open) -> None:
    generation = await registered(open_again())
    rivals = list(enumerate(open_again() for _ in range(4)))
    for number in range(1, 6):
        tries = [store.spend(generation, NAME, wave(number, expires=at)) for at, store in rivals]
        results = await asyncio.gather(*tries, return_exceptions=True)
        lost = [result for result in results if isinstance(result, StoreConflict)]
        assert (results.count(None), len(lost)) == (1, 3)


async def test_concurrent_acquisitions_get_different_generations(open_again: Open) -> None:
    stores = [open_again() for _ in range(6)]
    got = await asyncio.gather(*(store.acquire() for store in stores))
    assert sorted(got) == [1, 2, 3, 4, 5, 6]
