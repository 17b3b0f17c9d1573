"""Records to write, small and distinct, and a comparison by content."""

from dataclasses import replace

import numpy as np

from eplb_service.controller.records import DeploymentRecord, EpochEnd, EpochRecord
from eplb_service.domain.deployment import DeploymentIdentity, ModelShape
from eplb_service.domain.ids import NO_DIGEST, Digest, Epoch, Generation, Incarnation, IntArray
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.shares import Ownership, Shares, even_shares
from eplb_service.domain.wave import WaveContent, wave_digest
from eplb_service.protocol.messages import WaveName
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store import MemoryStore, SqliteStore
from eplb_service.store.redis_store import RedisStore

IDENTITY = DeploymentIdentity("tiny", "a", "serve", 0, "ep", "fp32")
NAME = IDENTITY.name
OLD = placement_from_ranks([[[0, 1], [2, 0]], [[0, 1], [2, 1]]], num_experts=3)
NEW = placement_from_ranks([[[0, 1], [2, 1]], [[0, 1], [2, 0]]], num_experts=3)
WIDER = placement_from_ranks([[[0], [1], [2]], [[1], [2], [0]]], num_experts=3)


def deployment(
    *, incarnation: int = 1, name: str = "a", ownership: Ownership = Ownership.OWN
) -> DeploymentRecord:
    shape = ModelShape((3, 4), 3, 0, 2, 4096)
    return DeploymentRecord(
        replace(IDENTITY, instance=name), shape, ownership, Incarnation(incarnation)
    )


def start(
    placement: Placement = OLD, *, epoch: int = 0, ownership: Ownership = Ownership.OWN
) -> EpochRecord:
    """What a deployment loaded."""
    return EpochRecord(
        WaveName(Epoch(epoch), NO_DIGEST),
        Incarnation(1),
        0,
        None,
        placement,
        even_shares(placement, ownership),
        "",
        "adopted",
        1000.5,
    )


def content(base_epoch: int = 0) -> WaveContent:
    return WaveContent(
        base_epoch=Epoch(base_epoch),
        base=OLD.digest(),
        target=NEW.digest(),
        layers=np.array([0, 1], dtype=np.int32),
        rows=NEW.phy2log.copy(),
        transfers=np.array([[0, 1, 1, 3], [1, 0, 0, 3]], dtype=np.int32),
        round_ends=(1, 2),
        dispatch=(Digest(7), Digest(2**63 - 1)),
    )


def wave(
    epoch: int, *, note: str = "", shares: Shares | None = None, expires: int = 500
) -> EpochRecord:
    """A number to spend; waves that expire at different steps are different waves."""
    part = content(epoch - 1)
    digest = wave_digest(part, incarnation=Incarnation(1), expires_at_step=expires)
    return EpochRecord(
        WaveName(Epoch(epoch), digest),
        Incarnation(1),
        expires,
        part,
        NEW,
        shares or even_shares(NEW, Ownership.OWN),
        f"plan{epoch}",
        note,
        1000.0 + epoch,
        "ada",
    )


def uneven_shares() -> Shares:
    """Dispatch tables that no rule derives: rank 0 uses the last replica of everything."""
    tables: IntArray = even_shares(NEW, Ownership.OWN).tables.copy()
    tables[0] = NEW.log2phy().max(axis=2, keepdims=True)
    return Shares(tables, Ownership.OWN)


def ended(epoch: int, phase: WavePhase, *, reason: str = "", step: int = 0) -> EpochEnd:
    return EpochEnd(Epoch(epoch), phase, reason, step, 2000.0 + epoch)


def assert_same(got: EpochRecord | None, want: EpochRecord) -> None:
    """Both records would send the very same orders."""
    assert got is not None
    assert _small(got) == _small(want)
    assert got.placement.digest() == want.placement.digest()
    assert got.shares.ownership is want.shares.ownership
    assert np.array_equal(got.shares.tables, want.shares.tables)
    assert got.shares.tables.dtype == np.int32
    assert (got.content is None) == (want.content is None)
    if got.content and want.content:
        rebuilt = wave_digest(
            got.content, incarnation=got.incarnation, expires_at_step=got.expires_at_step
        )
        assert rebuilt == want.wave.digest


def _small(record: EpochRecord) -> tuple[object, ...]:
    return (
        *(record.wave, record.incarnation, record.expires_at_step),
        *(record.plan_id, record.note, record.spent_at_s, record.who),
    )


async def registered(store: SqliteStore | RedisStore | MemoryStore) -> Generation:
    generation = await store.acquire()
    await store.register(generation, deployment(), start())
    return generation


async def settle(
    store: SqliteStore | RedisStore | MemoryStore, generation: Generation, *epochs: int
) -> None:
    for epoch in epochs:
        await store.spend(generation, NAME, wave(epoch))
        for phase in (WavePhase.MAY_COMMIT, WavePhase.COMMITTED, WavePhase.SETTLED):
            await store.end(generation, NAME, ended(epoch, phase, step=epoch * 10))
