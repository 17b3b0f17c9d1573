"""Tells people what happened: log lines and history, one per effect that matters.

Never on a migration's path: history is written by a task of its own.
"""

import asyncio
import logging
from collections.abc import Callable

from eplb_service.clock import Clock
from eplb_service.controller.counting import cost_of
from eplb_service.controller.deployment import Deployment, on_trial
from eplb_service.controller.machine_state import (
    Effect,
    Faulted,
    PlanEnded,
    PlanStarted,
    RecordPhase,
    SpendEpoch,
    WaveEnded,
)
from eplb_service.controller.ports import Store
from eplb_service.controller.records import HistoryEntry
from eplb_service.domain.errors import EplbError, StoreConflict
from eplb_service.domain.ids import Generation
from eplb_service.domain.plan import Answer, Plan
from eplb_service.protocol.wave_state import WavePhase

log = logging.getLogger(__name__)

QUEUE_BOUND = 1024

Entry = tuple[Generation, str, HistoryEntry]


class Teller:
    """Writes the story of every deployment."""

    def __init__(self, *, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entries: asyncio.Queue[Entry] = asyncio.Queue(QUEUE_BOUND)

    async def run(self, on_fenced: Callable[[StoreConflict], None]) -> None:
        """Write history until cancelled; a line that the store does not take is logged.

        A controller that does nothing but tell learns here that another one leads.
        """
        while True:
            generation, deployment, entry = await self._entries.get()
            try:
                await self._store.keep(generation, deployment, entry)
            except EplbError as lost:
                log.warning("history line lost", extra={"line": entry.text, "error": str(lost)})
                if isinstance(lost, StoreConflict):
                    on_fenced(lost)

    def tell(self, deployment: Deployment, effect: Effect) -> None:
        """Tell of an effect that was performed."""
        match effect:
            case SpendEpoch(record):
                fields = {"deployment": deployment.name, "epoch": record.wave.epoch}
                log.info("epoch spent", extra={**fields, "plan": record.plan_id})
            case RecordPhase(end):
                log.info(
                    "wave recorded",
                    extra={
                        "deployment": deployment.name,
                        "epoch": end.epoch,
                        "phase": end.phase.value,
                        "reason": end.reason,
                        "step": end.step,
                    },
                )
                if end.phase is WavePhase.COMMITTED:
                    self._committed(deployment)
            case WaveEnded():
                self._wave_ended(deployment, effect)
            case PlanStarted(plan):
                self._plan_started(deployment, plan)
            case PlanEnded(plan, phase, num_settled, reason):
                deployment.book.ended(plan.plan_id, phase, reason)
                deployment.plan_ended(num_settled=num_settled, now_s=self._clock.monotonic_s())
                ended = deployment.book.latest_run()
                if num_settled and ended is not None:
                    deployment.trial = on_trial(deployment, plan, ended.base)
                text = f"plan {phase}: {num_settled} of {len(plan.waves)} waves settled"
                text = f"{text}{f'; {reason}' if reason else ''}"
                self.note(deployment, "plan", text, plan.plan_id, who=plan.cause.who)
            case Faulted(text):
                self.note(deployment, "failure", text)
            case _:
                pass

    def note(
        self, deployment: Deployment, kind: str, text: str, plan_id: str = "", *, who: str = ""
    ) -> None:
        """Log a line and put it into the deployment's history.

        who    who asked for it; empty where the controller does it by itself
        """
        epoch = deployment.driver.state.serving.wave.epoch
        entry = HistoryEntry(self._clock.wall_s(), kind, plan_id, epoch, text, who)
        fields = {"deployment": deployment.name, "kind": kind, "epoch": epoch}
        log.info(text, extra={**fields, **({"who": who} if who else {})})
        try:
            self._entries.put_nowait((deployment.driver.errands.generation, deployment.name, entry))
        except asyncio.QueueFull:
            log.warning("history line lost", extra={"line": text, "error": "too many wait"})

    def _plan_started(self, deployment: Deployment, plan: Plan) -> None:
        deployment.is_news("")
        kept = deployment.book.started(plan.plan_id)
        verdict = kept.verdict if kept else None
        text = f"plan {verdict.answer if verdict else 'starts'}: {plan.price.num_moves} moves"
        text = f"{text} in {len(plan.waves)} waves"
        if verdict and verdict.answer is Answer.THROTTLE:
            text = f"{text}, of which {verdict.num_waves} may run"
        cause = plan.cause
        self.note(deployment, "plan", f"{text}; {cause.reason}", plan.plan_id, who=cause.who)

    def _committed(self, deployment: Deployment) -> None:
        """Ranks count under the new epoch from their cutover on."""
        flight = deployment.driver.state.flight
        if flight is not None and deployment.windows is not None:
            deployment.windows.begin(flight.record.wave.epoch, flight.record.placement)

    def _wave_ended(self, deployment: Deployment, ended: WaveEnded) -> None:
        record = ended.record
        if ended.phase is WavePhase.SETTLED:
            moves, num_bytes = cost_of(deployment, record)
            deployment.book.wave_settled(record.plan_id, moves=moves, num_bytes=num_bytes)
            windows = deployment.windows
            if windows is not None and windows.group.epoch != record.wave.epoch:
                windows.begin(record.wave.epoch, record.placement)
        why = ended.reason or record.note
        text = f"epoch {record.wave.epoch} {ended.phase}{f': {why}' if why else ''}"
        self.note(deployment, "wave", text, record.plan_id, who=record.who)
