"""What a machine's desk says: orders to ranks, and its effects in few words."""

import numpy as np

from eplb_service.controller.machine_state import (
    Effect,
    PlanEnded,
    RecordPhase,
    SendAbortTo,
    SendArmTo,
    SendOrderTo,
    SpendEpoch,
    WaveEnded,
)
from eplb_service.controller.records import EpochRecord
from eplb_service.domain.ids import Generation
from eplb_service.domain.wave import Order
from eplb_service.protocol.wave_state import WaveState


def last_words(ended: WaveEnded) -> WaveState:
    """Say how a wave ended, as its machine would."""
    record = ended.record
    return WaveState(
        record.wave,
        record.incarnation,
        record.expires_at_step,
        ended.phase,
        heard=(),
        reason=ended.reason,
        step=0,
    )


def order_for(rank: int, record: EpochRecord, generation: Generation) -> Order:
    """One rank's part of a recorded wave."""
    assert record.content is not None
    return Order(
        epoch=record.wave.epoch,
        generation=generation,
        incarnation=record.incarnation,
        expires_at_step=record.expires_at_step,
        content=record.content,
        dispatch=np.ascontiguousarray(record.shares.table_of(rank)[record.content.layers]),
    )


def described(effect: Effect) -> str:
    """Name an effect in a few words."""
    match effect:
        case SpendEpoch(record):
            until = f"until step {record.expires_at_step}"
            return f"SpendEpoch({record.wave.epoch} of {record.plan_id} {until})"
        case RecordPhase(end):
            return f"RecordPhase({end.epoch} {end.phase}{f': {end.reason}' if end.reason else ''})"
        case SendOrderTo(rank, record) | SendArmTo(rank, record) | SendAbortTo(rank, record):
            return f"{type(effect).__name__}(r{rank} {record.wave.epoch})"
        case PlanEnded(plan, phase, num_settled, reason):
            return f"PlanEnded({plan.plan_id} {phase} after {num_settled}: {reason})"
        case WaveEnded(record, phase):
            return f"WaveEnded({record.wave.epoch} {phase})"
        case _:
            return type(effect).__name__
