"""Waves on their way, for tests of the deployment machine."""

from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    EpochSpent,
    PhaseRecorded,
    RankSaid,
    RecordPhase,
    RunAsked,
    SendArmTo,
    SendOrderTo,
    SpendEpoch,
)
from eplb_service.protocol.messages import (
    WaveName,
    Word,
)
from eplb_service.protocol.wave_state import WavePhase
from tests.controller.group import (
    FLAT,
    SWAPPED,
    group,
    plan,
    run_events,
    staged,
)


def spent(effects: list[Effect]) -> WaveName:
    (found,) = [e for e in effects if isinstance(e, SpendEpoch)]
    return found.record.wave


def said(rank: int, word: Word, incarnation: int = 1) -> RankSaid:
    return RankSaid(rank, incarnation, word)


def flying() -> tuple[DeploymentState, WaveName]:
    """A group whose first wave's orders have left."""
    state, effects = run_events(group(), RunAsked(plan(FLAT, SWAPPED), 1, 5.0))
    wave = spent(effects)
    state, effects = run_events(state, EpochSpent(wave.epoch))
    assert [type(e) for e in effects] == [SendOrderTo, SendOrderTo]
    return state, wave


def armed() -> tuple[DeploymentState, WaveName]:
    state, wave = flying()
    state, effects = run_events(state, said(0, staged(wave)), said(1, staged(wave)))
    assert isinstance(effects[-1], RecordPhase)
    assert effects[-1].end.phase is WavePhase.MAY_COMMIT
    state, effects = run_events(state, PhaseRecorded(wave.epoch, WavePhase.MAY_COMMIT, 6.0))
    assert [type(e) for e in effects] == [SendArmTo, SendArmTo]
    return state, wave
