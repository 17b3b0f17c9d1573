"""The verbs that start and end plans; each says who asked and why in the history."""

from dataclasses import replace

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.desk import ActRequest, MapRequest, PlanRequest
from eplb_service.controller.drawing import Draw, Drawer
from eplb_service.controller.looks import run_view
from eplb_service.controller.machine_state import PlanPhase, StopAsked
from eplb_service.controller.maps import placement_in
from eplb_service.controller.once import once
from eplb_service.controller.plan_book import KeptPlan, plan_view
from eplb_service.controller.planning import NothingToDo, ToPlacement
from eplb_service.controller.ports import Archive
from eplb_service.controller.reading import draw_of, draw_only, name_of
from eplb_service.controller.records import EpochRecord
from eplb_service.controller.registry import Registry
from eplb_service.controller.teller import Teller
from eplb_service.controller.views import NothingView, PlanView, RunView
from eplb_service.domain.errors import (
    InvalidRequest,
    PlanRejected,
    UnknownEpoch,
)
from eplb_service.domain.ids import Epoch
from eplb_service.domain.plan import Answer, Cause, Origin
from eplb_service.protocol.wave_state import WavePhase

Started = PlanView | NothingView


class PlanVerbs:
    """apply, rebalance, abort, rollback and import of a desk.ActDesk."""

    def __init__(
        self, registry: Registry, drawer: Drawer, teller: Teller, archive: Archive
    ) -> None:
        self._registry = registry
        self._drawer = drawer
        self._teller = teller
        self._archive = archive

    async def apply(self, act: ActRequest, plan_id: str) -> RunView:
        """Start a kept plan; raises PlanOvertaken, PlanRejected, DeploymentBusy, UnknownPlan."""
        deployment = self._registry.find(act.deployment)

        async def work() -> RunView:
            kept = self._drawer.judged_again(deployment, deployment.book.find(plan_id))
            if kept.verdict.answer is Answer.NO:
                raise _rejected(kept)
            cause = asked(act, f"{kept.plan.cause.reason}; applied: {why(act)}")
            applied = replace(kept, plan=replace(kept.plan, cause=cause))
            await self._drawer.start(deployment, applied)
            return run_view(deployment, deployment.book.find(plan_id))

        return await once(deployment, act, f"apply {plan_id}", work)

    async def rebalance(self, act: ActRequest, request: PlanRequest) -> Started:
        """Plan, and apply if the verdict is yes; idempotent by request id."""
        deployment = self._registry.find(act.deployment)

        async def work() -> Started:
            spec = replace(request, reason=why(act), who=act.who)
            return await self._draw_and_start(deployment, draw_of(deployment, spec))

        what = f"rebalance {request.policy} {request.layers}"
        return await once(deployment, act, what, work)

    async def abort(self, act: ActRequest, plan_id: str) -> RunView:
        """End a plan after its running wave; raises UnknownPlan or InvalidRequest."""
        deployment = self._registry.find(act.deployment)

        async def work() -> RunView:
            kept = deployment.book.find(plan_id)
            if kept.phase is not PlanPhase.RUNNING:
                raise InvalidRequest(
                    f"plan {plan_id} is not running, it is {kept.phase}; nothing to end"
                )
            await deployment.driver.ask(StopAsked(plan_id, f"aborted: {why(act)}"))
            text = f"plan aborted: {why(act)}"
            self._teller.note(deployment, "abort", text, plan_id, who=name_of(act.who))
            return run_view(deployment, deployment.book.find(plan_id))

        return await once(deployment, act, f"abort {plan_id}", work)

    async def rollback(self, act: ActRequest, epoch: int | None) -> Started:
        """Apply a plan back to the placement of an earlier epoch (None: the one before)."""
        deployment = self._registry.find(act.deployment)

        async def work() -> Started:
            target = await self._settled(deployment, epoch)
            cause = asked(act, f"rollback to epoch {target.wave.epoch}: {why(act)}")
            draw = Draw(ToPlacement(target.placement), (), cause)
            return await self._draw_and_start(deployment, draw)

        return await once(deployment, act, f"rollback {epoch}", work)

    async def import_map(self, act: ActRequest, request: MapRequest) -> Started:
        """Apply a plan to the placement of an expert-map file, or only draw it."""
        deployment = self._registry.find(act.deployment)

        async def work() -> Started:
            target = placement_in(deployment, request.text, reshape=request.may_reshape)
            draw = Draw(ToPlacement(target), (), asked(act, f"import: {why(act)}"))
            if request.is_dry_run:
                return await draw_only(deployment, draw, self._drawer, self._teller)
            return await self._draw_and_start(deployment, draw)

        return await once(deployment, act, f"import {hash(request)}", work)

    async def _settled(self, deployment: Deployment, epoch: int | None) -> EpochRecord:
        serving = deployment.driver.state.serving.wave.epoch
        if epoch is None:
            before = await self._archive.settled_before(deployment.name, serving)
            if before is None:
                raise UnknownEpoch(
                    f"no settled epoch before {serving} is on record for {deployment.name}; "
                    "there is nothing to roll back to"
                )
            return before
        recorded = await self._archive.epoch(deployment.name, Epoch(epoch))
        if recorded is None or recorded[1].phase is not WavePhase.SETTLED:
            how = f"it is {recorded[1].phase}" if recorded else "it is not on record"
            raise UnknownEpoch(
                f"cannot roll back to epoch {epoch}: {how}; only settled epochs were served"
            )
        return recorded[0]

    async def _draw_and_start(self, deployment: Deployment, draw: Draw) -> Started:
        kept = await self._drawer.draw(deployment, draw)
        if isinstance(kept, NothingToDo):
            return NothingView(deployment.name, kept.reason, kept.text)
        if kept.verdict.answer is Answer.NO:
            self._drawer.reject(deployment, kept)
        else:
            await self._drawer.start(deployment, kept)
        return plan_view(deployment.name, deployment.book.find(kept.plan.plan_id))


def why(act: ActRequest) -> str:
    """What was asked for."""
    return act.reason or "no reason given"


def asked(act: ActRequest, reason: str) -> Cause:
    """Cause of a plan that an operator asks for."""
    return Cause(Origin.OPERATOR, reason, name_of(act.who))


def _rejected(kept: KeptPlan) -> PlanRejected:
    said = next(f for f in kept.verdict.findings if f.answer is Answer.NO)
    return PlanRejected(
        f"plan {kept.plan.plan_id} was judged no by {said.gate}: {said.text}; nothing changed, "
        f"`eplbctl explain {kept.plan.plan_id}` shows every gate"
    )
