"""Plans on trial: each is judged on the windows after it, and rolled back once if it is worse."""

import asyncio
from dataclasses import dataclass, replace

from eplb_service.controller.deployment import Deployment, OnTrial
from eplb_service.controller.drawing import Draw, Drawer, task_of
from eplb_service.controller.looks import imbalance_view, measured_window
from eplb_service.controller.machine_state import PlanPhase
from eplb_service.controller.planning import NothingToDo, Pricing, ToPlacement
from eplb_service.controller.registry import Registry
from eplb_service.controller.revisions import current
from eplb_service.controller.sharing import mean_noise
from eplb_service.controller.standing import evidence_of
from eplb_service.controller.teller import Teller
from eplb_service.domain.heat import mean_with_data
from eplb_service.domain.plan import Answer, Cause, Origin
from eplb_service.gates.timely import lacking
from eplb_service.gates.trial import Aftermath, Judgement, Ruling, judge_trial
from eplb_service.load.window import LoadWindow

SHARE_TURNS = 3
"""Turns of the share loop after which shares that did not change are taken for good enough."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """A trial with its outcome in one window."""

    judgement: Judgement
    first_step: int
    last_step: int


class Trials:
    """Judges the plan that ended last."""

    def __init__(self, registry: Registry, teller: Teller, drawer: Drawer) -> None:
        self._registry = registry
        self._teller = teller
        self._drawer = drawer

    async def hold(self, deployment: Deployment) -> bool:
        """Judge it if a window tells; whether nothing else may be planned meanwhile."""
        found = deployment.trial
        if found is None:
            return False
        if found.epoch != deployment.driver.state.serving.wave.epoch:
            deployment.trial = None
            return False
        window = measured_window(deployment)
        if window is None or not self._is_told(deployment, found, window):
            return False
        judged = await self._judge(deployment, found, window)
        if judged.judgement.ruling is not Ruling.WORSE or not found.may_roll_back:
            self._close(deployment, judged.judgement)
            return False
        if found.worse_at < 0:
            deployment.trial = replace(found, worse_at=judged.last_step)
        elif judged.first_step >= found.worse_at:
            # Two windows that share no step say so: it is neither noise nor a passing burst.
            self._close(deployment, judged.judgement)
            await self._roll_back(deployment, found, judged.judgement)
        return True

    def _is_told(self, deployment: Deployment, found: OnTrial, window: LoadWindow) -> bool:
        """Whether a window says what came of it, by the tables that it is to be used with."""
        tuning = deployment.tuning
        if lacking(evidence_of(deployment, window), tuning.gates):
            return False
        waited_s = self._registry.tools.clock.monotonic_s() - deployment.last_plan_ended_s
        has_shares = current(deployment.shares, deployment.driver.state) is not None
        is_patient = waited_s >= SHARE_TURNS * tuning.shares.interval_s
        is_later = found.worse_at < 0 or window.first_step >= found.worse_at
        return is_later and (has_shares or is_patient or bool(deployment.even_because))

    async def _judge(self, deployment: Deployment, found: OnTrial, window: LoadWindow) -> _Judged:
        task = task_of(deployment, _draw(found, "judge"))
        priced = await asyncio.to_thread(Pricing(task).imbalance, found.old)
        measured = imbalance_view(deployment, window)
        after = Aftermath(
            imbalance_old=mean_with_data(priced),
            imbalance_new=measured.mean,
            noise=mean_noise(task.heat.tokens, task.current.layout.num_ranks),
            step_s=window.step_seconds,
            tokens_per_step=float(window.tokens.sum()) / window.num_steps,
        )
        margin = deployment.tuning.gates.worse_margin
        ruling = judge_trial(found.trial, after, margin=margin)
        return _Judged(ruling, window.first_step, window.last_step)

    def _close(self, deployment: Deployment, judgement: Judgement) -> None:
        found = deployment.trial
        assert found is not None
        deployment.trial = None
        deployment.remember(judgement.kept)
        text = f"plan judged {judgement.ruling}: {judgement.text}"
        self._teller.note(deployment, "plan", text, found.trial.plan_id)

    async def _roll_back(
        self, deployment: Deployment, found: OnTrial, judgement: Judgement
    ) -> None:
        """Go back as a plan, once: what a rollback brings is not rolled back."""
        reason = f"roll back plan {found.trial.plan_id}: {judgement.text}"
        kept = await self._drawer.draw(deployment, _draw(found, reason))
        if isinstance(kept, NothingToDo):
            return
        if kept.verdict.answer is Answer.NO:
            self._drawer.reject(deployment, kept)
            return
        deployment.rolling_back = kept.plan.plan_id
        # It counts as fruitless, so that the next plan waits twice as long.
        deployment.num_fruitless += 1
        await self._drawer.start(deployment, replace(kept, phase=PlanPhase.ADMITTED))


def _draw(found: OnTrial, reason: str) -> Draw:
    return Draw(ToPlacement(found.old), (), Cause(Origin.OPERATOR, reason))
