"""Plans for every deployment at its interval, unasked."""

import asyncio
import logging
from dataclasses import replace

from eplb_service.clock import Clock
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.draining import drain_draw, still_full
from eplb_service.controller.drawing import Draw, Drawer, goal_of
from eplb_service.controller.looks import measured_window
from eplb_service.controller.machine_state import PlanPhase
from eplb_service.controller.planning import NothingToDo, ToPlacement
from eplb_service.controller.registry import Registry
from eplb_service.controller.runs import halt_text, missing_ranks, strayed
from eplb_service.controller.standing import evidence_of, standing_of
from eplb_service.controller.teller import Teller
from eplb_service.controller.trials import Trials
from eplb_service.domain.errors import (
    DeploymentBusy,
    DeploymentHalted,
    NotLeader,
    NotReady,
    PlannerFailed,
    PlannerTimeout,
    PlanOvertaken,
)
from eplb_service.domain.metric_names import PLANNER_FAILURES
from eplb_service.domain.plan import Answer, Cause, Origin
from eplb_service.gates.timely import balanced, cooling, frozen, lacking

log = logging.getLogger(__name__)

POLL_S = 0.25
MOMENTARY = (DeploymentBusy, DeploymentHalted, NotLeader, NotReady, PlanOvertaken)
"""What may be otherwise at the next interval, without anybody doing anything."""


class Planner:
    """Draws a plan when one is due, and starts it when the gates say so."""

    def __init__(self, registry: Registry, teller: Teller, drawer: Drawer) -> None:
        self._registry = registry
        self._teller = teller
        self._drawer = drawer
        self._trials = Trials(registry, teller, drawer)
        self._busy: set[str] = set()
        self._next_s: dict[str, float] = {}

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Plan for every deployment at its interval, until cancelled."""
        clock = self._registry.tools.clock
        while True:
            await asyncio.sleep(POLL_S)
            now_s = clock.monotonic_s()
            for deployment in self._registry.all():
                terms, name = deployment.tuning.planning, deployment.name
                due_s = self._next_s.setdefault(name, now_s + terms.interval_s)
                if terms.is_automatic and now_s >= due_s and name not in self._busy:
                    self._next_s[name] = now_s + terms.interval_s
                    self._busy.add(name)
                    tasks.create_task(self.plan_once(deployment), name=f"plan {name}")

    async def plan_once(self, deployment: Deployment) -> None:
        """Run one cycle; whatever it meets is told and counted, and nothing is raised."""
        try:
            await self._plan_unasked(deployment)
            self._succeeded(deployment)
        except (PlannerFailed, PlannerTimeout):
            pass  # told and counted where it was raised; the next interval plans again
        except MOMENTARY as refused:
            deployment.skipped(refused.code)
            self._succeeded(deployment)
        except Exception as failed:
            # Planning changes nothing, so that its faults, ours too, end no more than one cycle.
            log.exception("planning failed", extra={"deployment": deployment.name})
            self._failed(deployment, f"{type(failed).__name__}: {failed}")
        finally:
            self._busy.discard(deployment.name)

    async def _plan_unasked(self, deployment: Deployment) -> None:
        held_up = _held_up(deployment, self._registry.tools.clock)
        if held_up:
            deployment.skipped(held_up)
            return
        if await self._return(deployment):
            return
        if await self._drain(deployment):
            return
        if await self._trials.hold(deployment):
            deployment.skipped("on_trial")
            return
        reason = self._not_due(deployment)
        if reason:
            deployment.skipped(reason)
            return
        layers = self._free_layers(deployment)
        if not layers:
            deployment.skipped("thrash")
            return
        goal = goal_of(deployment.tuning.planning)
        draw = Draw(goal, layers, Cause(Origin.AUTOMATIC, "interval"))
        kept = await self._drawer.draw(deployment, draw)
        if isinstance(kept, NothingToDo):
            deployment.skipped(kept.reason)
        elif kept.verdict.answer is Answer.NO:
            deployment.skipped(self._drawer.reject(deployment, kept).gate)
        else:
            await self._drawer.start(deployment, replace(kept, phase=PlanPhase.ADMITTED))

    async def _return(self, deployment: Deployment) -> bool:
        """Take a group that could not load the settled placement back to it, by ordinary waves.

        Tried once an incarnation; where budgets forbid it, plans by heat go on from what is
        served. Returns whether a plan was started.
        """
        state = deployment.driver.state
        if state.membership is None or not strayed(state):
            return False
        if deployment.returned_incarnation == state.membership.incarnation:
            return False
        deployment.returned_incarnation = state.membership.incarnation
        epoch = state.settled.wave.epoch
        reason = f"return to epoch {epoch}, which the restarted group did not load"
        goal = ToPlacement(state.settled.placement)
        return await self._go(deployment, Draw(goal, (), Cause(Origin.OPERATOR, reason)))

    async def _drain(self, deployment: Deployment) -> bool:
        """Go on with drained ranks that an earlier plan could not empty; whether one started."""
        full = still_full(deployment)
        if not full:
            return False
        reason = f"drain of ranks {list(full)} goes on"
        cause = Cause(Origin.OPERATOR, reason)
        return await self._go(deployment, drain_draw(deployment, deployment.drained, cause))

    async def _go(self, deployment: Deployment, draw: Draw) -> bool:
        """Draw a plan that no load has to justify, and start it; whether it started."""
        kept = await self._drawer.draw(deployment, draw)
        if isinstance(kept, NothingToDo):
            return False
        if kept.verdict.answer is Answer.NO:
            self._drawer.reject(deployment, kept)
            return False
        await self._drawer.start(deployment, replace(kept, phase=PlanPhase.ADMITTED))
        return True

    def _succeeded(self, deployment: Deployment) -> None:
        deployment.meter.planned_at_s = self._registry.tools.clock.wall_s()

    def _failed(self, deployment: Deployment, text: str) -> None:
        deployment.failed(text)
        self._registry.tools.recorder.add(PLANNER_FAILURES, (deployment.name,), 1)
        if deployment.is_news(text):
            self._teller.note(deployment, "failure", f"automatic planning failed: {text}")

    def _free_layers(self, deployment: Deployment) -> tuple[int, ...]:
        """Layers that no thrash holds back; those that one does are told of, once."""
        num_layers = deployment.driver.state.serving.placement.num_layers
        held = deployment.held_back.layers(self._registry.tools.clock.monotonic_s())
        if held and deployment.is_news(str(held), "thrash"):
            text = (
                f"thrash: plans put back in layers {list(held)} what earlier ones moved; automatic "
                f"plans leave them alone for {deployment.tuning.gates.hold_back_s:g} s, twice as "
                "long each time in a row"
            )
            self._teller.note(deployment, "plan", text)
        return tuple(layer for layer in range(num_layers) if layer not in held)

    def _not_due(self, deployment: Deployment) -> str:
        """Code of what makes a plan by heat pointless to draw; empty where nothing does."""
        settings = deployment.tuning.gates
        if cooling(standing_of(deployment, self._registry.tools.clock), settings):
            return "cooldown"
        evidence = evidence_of(deployment, measured_window(deployment))
        if lacking(evidence, settings):
            return "insufficient_samples"
        if balanced(evidence, settings):
            return "balanced"
        return ""


def _held_up(deployment: Deployment, clock: Clock) -> str:
    """Code of what forbids any automatic plan now; empty where nothing does."""
    state = deployment.driver.state
    if halt_text(state):
        return "halted"
    if state.run or state.flight or state.spending:
        return "busy"
    if missing_ranks(state):
        return "not_ready"
    if frozen(standing_of(deployment, clock)):
        return "frozen"
    return ""
