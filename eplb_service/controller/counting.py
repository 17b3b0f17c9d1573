"""Counts what happened to a deployment: one look at every effect that was performed."""

from eplb_service.clock import Clock
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.machine_state import (
    Effect,
    PlanEnded,
    PlanPhase,
    RecordPhase,
    SpendEpoch,
    WaveEnded,
)
from eplb_service.controller.ports import Recorder
from eplb_service.controller.records import EpochRecord
from eplb_service.domain.metric_names import (
    DIGEST_MISMATCHES,
    DURATION,
    HALTS,
    MOVED_BYTES,
    MOVES,
    MOVES_UNDONE,
    PLANNER_FAILURES,
    PLANS_ENDED,
    STREAMS_OPENED,
    WAVES,
)
from eplb_service.domain.moves import busiest_transfers
from eplb_service.domain.plan import Origin
from eplb_service.domain.wave import SOURCE, TARGET
from eplb_service.protocol.wave_state import WavePhase

FROM_ZERO = (MOVES_UNDONE, DIGEST_MISMATCHES, HALTS, PLANNER_FAILURES, STREAMS_OPENED)
OUTCOMES = (WavePhase.SETTLED.value, WavePhase.ABORTED.value)


class Counting:
    """Turns effects into counters."""

    def __init__(self, *, clock: Clock, recorder: Recorder) -> None:
        self._clock = clock
        self._recorder = recorder

    def begin(self, name: str) -> None:
        """Let every counter of a deployment appear at 0, so that its first increase is seen."""
        record = self._recorder
        for metric in FROM_ZERO:
            record.add(metric, (name,), 0)
        for metric in (WAVES, MOVES, MOVED_BYTES):
            for outcome in OUTCOMES:
                record.add(metric, (name, outcome), 0)
        for phase in (PlanPhase.DONE, PlanPhase.STOPPED):
            record.add(PLANS_ENDED, (name, phase.value), 0)

    def performed(self, deployment: Deployment, effect: Effect) -> None:
        """Count an effect that was performed."""
        meter = deployment.meter
        match effect:
            case SpendEpoch():
                meter.spent_at_s, meter.may_commit_at_s = self._clock.monotonic_s(), None
                meter.base = deployment.driver.state.serving.placement
            case RecordPhase(end):
                self._reached(deployment, end.phase)
            case WaveEnded():
                self._wave_ended(deployment, effect)
            case PlanEnded(plan, phase):
                self._recorder.add(PLANS_ENDED, (deployment.name, phase.value), 1)
                if phase is PlanPhase.DONE:
                    meter.promise.give(plan.price.imbalance_after)
            case _:
                pass

    def _reached(self, deployment: Deployment, phase: WavePhase) -> None:
        meter, now_s = deployment.meter, self._clock.monotonic_s()
        if phase is WavePhase.MAY_COMMIT and meter.spent_at_s is not None:
            self._observe(deployment, "stage", now_s - meter.spent_at_s)
            meter.may_commit_at_s = now_s
        elif phase is WavePhase.COMMITTED and meter.may_commit_at_s is not None:
            self._observe(deployment, "cutover", now_s - meter.may_commit_at_s)

    def _observe(self, deployment: Deployment, phase: str, seconds: float) -> None:
        self._recorder.observe(DURATION, (deployment.name, phase), seconds)

    def _wave_ended(self, deployment: Deployment, ended: WaveEnded) -> None:
        add, name, record, phase = self._recorder.add, deployment.name, ended.record, ended.phase
        moves, num_bytes = cost_of(deployment, record)
        add(WAVES, (name, phase.value), 1)
        add(MOVES, (name, phase.value), moves)
        add(MOVED_BYTES, (name, phase.value), num_bytes)
        base, meter = deployment.meter.base, deployment.meter
        began_s, staged_s = meter.spent_at_s, meter.may_commit_at_s
        if phase is WavePhase.SETTLED and began_s is not None and staged_s is not None:
            deployment.links.moved(
                num_bytes, busiest_bytes_of(deployment, record), staged_s - began_s
            )
        if phase is WavePhase.SETTLED and base is not None:
            moved, undone = meter.undoing.counted(base, record.placement)
            add(MOVES_UNDONE, (name,), int(undone.sum()))
            if ended.plan is not None and ended.plan.cause.origin is Origin.AUTOMATIC:
                deployment.moved(moved, undone, now_s=self._clock.monotonic_s())
        meter.base = meter.spent_at_s = meter.may_commit_at_s = None


def cost_of(deployment: Deployment, record: EpochRecord) -> tuple[int, int]:
    """Slots that a wave fills, and bytes that ranks send each other for it."""
    moves, remote = moves_of(record)
    membership = deployment.driver.state.membership
    return moves, remote * (membership.shape.bytes_per_expert if membership else 0)


def busiest_bytes_of(deployment: Deployment, record: EpochRecord) -> int:
    """Bytes that the busiest rank of a wave sends, or receives."""
    membership = deployment.driver.state.membership
    if record.content is None or membership is None:
        return 0
    experts = busiest_transfers(record.content.transfers, record.placement)
    return experts * membership.shape.bytes_per_expert


def moves_of(record: EpochRecord) -> tuple[int, int]:
    """Slots that the wave filled, and how many of them from another rank."""
    if record.content is None:
        return 0, 0
    transfers = record.content.transfers
    ranks = record.placement.layout.rank_of_slot()
    remote = ranks[transfers[:, SOURCE]] != ranks[transfers[:, TARGET]]
    return len(transfers), int(remote.sum())
