"""From what the store knows to a deployment's state, before any rank has greeted.

Nothing is discarded: a wave that may have committed is armed again or learnt of.
"""

from eplb_service.controller.machine_state import DeploymentState, Flight, Pace
from eplb_service.controller.membership import Membership
from eplb_service.controller.records import EpochEnd, EpochRecord, Recovered
from eplb_service.protocol.wave_state import Heard, WavePhase, WaveState


def recovered_state(found: Recovered, *, pace: Pace, now_s: float) -> DeploymentState:
    """Build the state that a new controller starts from."""
    record = found.record
    num_ranks = found.settled.placement.layout.num_ranks
    return DeploymentState(
        membership=Membership(
            record.identity, record.shape, record.incarnation, (None,) * num_ranks
        ),
        serving=found.settled,
        settled=found.settled,
        highest_epoch=found.highest_epoch,
        run=None,
        spending=None,
        flight=_flight(found.open_epoch, found.open_end),
        fault="",
        pace=pace,
        now_s=now_s,
    )


def _flight(record: EpochRecord | None, end: EpochEnd | None) -> Flight | None:
    if record is None or end is None:
        return None
    num_ranks = record.placement.layout.num_ranks
    wave = WaveState(
        wave=record.wave,
        incarnation=record.incarnation,
        expires_at_step=record.expires_at_step,
        phase=_known_phase(end.phase),
        heard=(Heard.NOTHING,) * num_ranks,
        reason=end.reason,
        step=end.step,
    )
    return Flight(record, wave, waited_s=0.0, since_nudge_s=0.0)


def _known_phase(recorded: WavePhase) -> WavePhase:
    """What a record proves: only these phases are ever written."""
    match recorded:
        case WavePhase.MAY_COMMIT | WavePhase.COMMITTED | WavePhase.ABORTED:
            return recorded
        case _:
            return WavePhase.SPENT
