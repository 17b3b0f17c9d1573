"""Between the simulated store's records and those of the controller."""

from eplb_service.controller.records import DeploymentRecord, EpochEnd, EpochRecord, Recovered
from eplb_service.domain.ids import NO_DIGEST, Epoch, Incarnation, Revision
from eplb_service.protocol.messages import WaveName
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.sim.rank import IDENTITY, shape_of
from eplb_service.sim.store import SimStore, Stand, WaveRecord

SERVED = (WavePhase.COMMITTED, WavePhase.SETTLED)


def wave_record(record: EpochRecord) -> WaveRecord:
    """Write down what the machine spends a number on."""
    assert record.content is not None
    stand = Stand(record.placement, record.shares)
    return WaveRecord(
        record.wave,
        record.incarnation,
        record.expires_at_step,
        record.content,
        stand,
        WavePhase.SPENT,
    )


def found_in(store: SimStore) -> Recovered | None:
    """Return all that a new controller finds; None before the first group was heard."""
    if not store.incarnation:
        return None
    deployment = store.deployment
    newest = store.records[max(store.records)] if store.records else None
    is_open = newest is not None and newest.phase is not WavePhase.SETTLED
    served = [epoch for epoch, record in store.records.items() if record.phase in SERVED]
    return Recovered(
        record=DeploymentRecord(
            IDENTITY, shape_of(deployment), deployment.ownership, store.incarnation
        ),
        settled=_epoch_record(store, max(served, default=Epoch(0))),
        open_epoch=_epoch_record(store, newest.wave.epoch) if newest and is_open else None,
        open_end=_end_of(newest) if newest and is_open else None,
        highest_epoch=highest_epoch(store),
        highest_revision=Revision(0),
        freeze=None,
        settings="{}",
    )


def highest_epoch(store: SimStore) -> Epoch:
    """Return the highest number spent."""
    return max(store.records, default=Epoch(0))


def _epoch_record(store: SimStore, epoch: Epoch) -> EpochRecord:
    stand, record = store.stands[epoch], store.records.get(epoch)
    return EpochRecord(
        wave=record.wave if record else WaveName(epoch, NO_DIGEST),
        incarnation=record.incarnation if record else Incarnation(0),
        expires_at_step=record.expires_at_step if record else 0,
        content=record.content if record else None,
        placement=stand.placement,
        shares=stand.shares,
        plan_id="",
        note="",
        spent_at_s=0.0,
    )


def _end_of(record: WaveRecord) -> EpochEnd:
    return EpochEnd(record.wave.epoch, record.phase, "", 0, 0.0)
