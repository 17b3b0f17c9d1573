"""How a rank's words change what is known of it between two Hellos."""

from dataclasses import replace

from eplb_service.controller.records import EpochRecord
from eplb_service.domain.wave import first_shares
from eplb_service.protocol.messages import (
    Accepted,
    Armed,
    CutOver,
    Dropped,
    Halted,
    Idle,
    Nack,
    Outcome,
    OutcomeKind,
    RankPhase,
    RankStatus,
    SharesApplied,
    Staged,
    WaveName,
    Word,
)


def fold(status: RankStatus, word: Word, record: EpochRecord | None) -> RankStatus:
    """Return the rank's status after its word; `record` is the wave in flight, if any."""
    match word:
        case Accepted(wave):
            return _holding(status, wave, RankPhase.ACCEPTED)
        case Staged(wave):
            return _holding(status, wave, RankPhase.STAGED)
        case Armed(wave):
            return _holding(status, wave, RankPhase.ARMED)
        case Nack():
            return status
        case CutOver(wave, step):
            return _cut_over(status, Outcome(wave, OutcomeKind.CUT_OVER, step), record)
        case Dropped(wave, step):
            outcome = Outcome(wave, OutcomeKind.DROPPED, step)
            return replace(
                status,
                phase=RankPhase.SERVING,
                held=None,
                outcome=outcome,
                step=max(status.step, step),
            )
        case Halted(halt, step):
            return replace(status, halt=halt, step=max(status.step, step))
        case Idle(is_idle, step):
            return replace(status, is_idle=is_idle, step=max(status.step, step))
        case SharesApplied(shares, step):
            return replace(status, served=shares, step=max(status.step, step))


def _holding(status: RankStatus, wave: WaveName, phase: RankPhase) -> RankStatus:
    return replace(status, phase=phase, held=wave)


def _cut_over(status: RankStatus, outcome: Outcome, record: EpochRecord | None) -> RankStatus:
    served = status.served
    if record and record.content and record.wave == outcome.wave:
        served = first_shares(record.wave.epoch, record.content)
    return replace(
        status,
        served=served,
        high_mark=max(status.high_mark, outcome.wave.epoch),
        phase=RankPhase.SERVING,
        held=None,
        outcome=outcome,
        step=max(status.step, outcome.step),
    )
