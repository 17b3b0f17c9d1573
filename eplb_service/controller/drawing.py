"""Draws, prices and judges one plan, and starts it.

The event loop never computes a plan; the runner does, elsewhere and by a deadline.
A plan drawn for an epoch that is no longer served is dropped.
"""

from dataclasses import dataclass, replace

import numpy as np

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.foresight import expected
from eplb_service.controller.looks import heat_now, measured_window, newest_window
from eplb_service.controller.machine_state import PlanPhase, RunAsked
from eplb_service.controller.plan_book import KeptPlan
from eplb_service.controller.planning import ByPolicy, Goal, NothingToDo, PlanningInput
from eplb_service.controller.ports import PlanRunner
from eplb_service.controller.pricing import Timing
from eplb_service.controller.registry import Registry
from eplb_service.controller.rollcall import away
from eplb_service.controller.runs import missing_ranks, obstacle
from eplb_service.controller.standing import budget_of, evidence_of, standing_of
from eplb_service.controller.teller import Teller
from eplb_service.controller.tuning import PlanningTerms
from eplb_service.controller.yielding import yielding_round_bytes
from eplb_service.domain.errors import NotReady, PlannerFailed, PlannerTimeout, PlanOvertaken
from eplb_service.domain.metric_names import DURATION, PLANNER_FAILURES, PLANS
from eplb_service.domain.plan import Answer, Cause, Finding, Origin, Plan, Verdict
from eplb_service.domain.waves import WaveLimits
from eplb_service.gates.context import GateContext
from eplb_service.gates.judge import judge
from eplb_service.gates.trial import PACES_KNOWN, Pace
from eplb_service.load.window import LoadWindow

STALL_PER_PLAN_S = 0.001
"""Time that serving is expected to lose to a plan until some wave's loss was measured; nominal."""


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """What plan to draw."""

    goal: Goal
    layers: tuple[int, ...]
    cause: Cause
    masked: tuple[int, ...] | None = None
    """Ranks that take no part; None for those that are drained."""


def goal_of(terms: PlanningTerms, *, policy: str = "", seed: int = 0) -> ByPolicy:
    """Let a policy choose, within the budgets; the configured one where none is named."""
    return ByPolicy(
        policy or terms.policy,
        terms.budget.max_moves,
        seed=seed,
        is_forced=bool(policy),
        per_layer=terms.budget.per_layer,
        per_rank=terms.budget.per_rank,
    )


class Drawer:
    """Draws plans for operators and for the planner."""

    def __init__(self, registry: Registry, teller: Teller, runner: PlanRunner) -> None:
        self._registry = registry
        self._teller = teller
        self._runner = runner

    async def draw(self, deployment: Deployment, draw: Draw) -> KeptPlan | NothingToDo:
        """Draw, price and judge a plan; it is kept, and nothing else changes.

        Raises NotReady, PlannerFailed, PlannerTimeout, PlanOvertaken and whatever
        planning.draft refuses a target with.
        """
        note_pace(deployment)
        task = task_of(deployment, draw)
        if isinstance(draw.goal, ByPolicy):
            task = replace(task, heat=expected(deployment, task.heat))
        name, record = deployment.name, self._registry.tools.recorder
        clock = self._registry.tools.clock
        began_s = clock.monotonic_s()
        try:
            found = await self._runner.draw(task, deadline_s=deployment.tuning.planning.deadline_s)
        except (PlannerFailed, PlannerTimeout) as failed:
            deployment.failed(str(failed))
            record.add(PLANNER_FAILURES, (name,), 1)
            record.add(PLANS, (name, "failed", failed.code), 1)
            if deployment.is_news(str(failed)):
                self._teller.note(deployment, "failure", str(failed))
            raise
        finally:
            record.observe(DURATION, (name, "draw"), clock.monotonic_s() - began_s)
        if isinstance(found, NothingToDo):
            record.add(PLANS, (name, "nothing_to_do", found.reason), 1)
            return found
        serving = deployment.driver.state.serving
        if found.base != serving.placement.digest():
            raise PlanOvertaken(
                f"epoch {serving.wave.epoch} came into service while the plan for epoch "
                f"{task.base_epoch} was drawn; it is dropped, ask again"
            )
        kept = self._judged(deployment, found)
        verdict = kept.verdict
        record.add(PLANS, (name, verdict.answer.value, _reason(verdict)), 1)
        deployment.book.keep(kept)
        return kept

    def judged_again(self, deployment: Deployment, kept: KeptPlan) -> KeptPlan:
        """Judge a kept plan by how things stand now, as one that an operator asks for."""
        asked = replace(kept.plan.cause, origin=Origin.OPERATOR)
        fresh = self._judged(deployment, replace(kept.plan, cause=asked))
        again = replace(kept, plan=fresh.plan, verdict=fresh.verdict)
        deployment.book.keep(again)
        return again

    def reject(self, deployment: Deployment, kept: KeptPlan) -> Finding:
        """Put a plan aside that must not run, and return what speaks against it."""
        said = next(f for f in kept.verdict.findings if f.answer is Answer.NO)
        deployment.book.keep(replace(kept, phase=PlanPhase.REJECTED, ending=said.text))
        plan = kept.plan
        if plan.cause.origin is Origin.OPERATOR or deployment.is_news(said.gate):
            text = f"plan no: {said.gate}: {said.text}; {plan.cause.reason}"
            self._teller.note(deployment, "plan", text, plan.plan_id, who=plan.cause.who)
        return said

    async def start(self, deployment: Deployment, kept: KeptPlan) -> None:
        """Start a plan that may run.

        Raises DeploymentHalted, DeploymentBusy, NotReady or PlanOvertaken, with nothing started.
        """
        found = obstacle(deployment.driver.state, kept.plan)
        if found is not None:
            raise found
        deployment.book.keep(kept)
        note_pace(deployment)
        wall_s = self._registry.tools.clock.wall_s()
        await deployment.driver.ask(RunAsked(kept.plan, kept.verdict.num_waves, wall_s))

    def _judged(self, deployment: Deployment, plan: Plan) -> KeptPlan:
        clock = self._registry.tools.clock
        context = GateContext(
            plan=plan,
            evidence=evidence_of(deployment, measured_window(deployment)),
            standing=standing_of(deployment, clock),
            budget=budget_of(deployment),
            settings=deployment.tuning.gates,
        )
        verdict = judge(context)
        return KeptPlan(
            plan,
            verdict,
            PlanPhase.DRAFTED,
            is_dry_run=True,
            drawn_at_s=clock.wall_s(),
            base=deployment.driver.state.serving.placement,
        )


def _reason(verdict: Verdict) -> str:
    """Name the gate that kept the verdict from being yes; empty where none did."""
    if verdict.answer is Answer.YES:
        return ""
    return next(said.gate for said in verdict.findings if said.answer is verdict.answer)


def task_of(deployment: Deployment, draw: Draw) -> PlanningInput:
    """What a plan is drawn from at this moment; raises NotReady."""
    state = deployment.driver.state
    membership = state.membership
    if membership is None or not membership.is_complete:
        raise NotReady(
            f"ranks {missing_ranks(state)} of {deployment.name} have not registered; "
            "a plan needs all of them"
        )
    profiles = [member.profile for member in membership.known]
    window, placement = newest_window(deployment), state.serving.placement
    terms = deployment.tuning.planning
    masked = deployment.drained if draw.masked is None else draw.masked
    return PlanningInput(
        base_epoch=state.serving.wave.epoch,
        current=placement,
        heat=heat_now(deployment),
        sources=_sources(window, len(profiles)),
        goal=draw.goal,
        layers=draw.layers,
        num_groups=membership.shape.num_groups,
        limits=WaveLimits(
            staging_rows=tuple(profile.staging_rows for profile in profiles),
            round_bytes=_round_bytes(deployment, len(profiles)),
            bytes_per_expert=membership.shape.bytes_per_expert,
            ownership=profiles[0].ownership,
            sets_shares=not deployment.even_because,
            nodes=tuple(profile.node for profile in profiles),
            distance=None if terms.distances is None else np.array(terms.distances),
            masked=masked,
            dead=tuple(rank for rank in away(membership) if rank in masked),
        ),
        timing=_timing(deployment, window, len(profiles)),
        cause=draw.cause,
    )


def _round_bytes(deployment: Deployment, num_ranks: int) -> int:
    """Bytes of a round: the budget, or less where moving made steps too slow so far."""
    terms, links = deployment.tuning.planning, deployment.links
    tally = deployment.meter.tally
    lost_s = tally.lost_s(num_ranks)
    return yielding_round_bytes(
        terms.round_bytes,
        lost_s_per_byte=lost_s / links.busiest_bytes if links.busiest_bytes else 0.0,
        step_s=tally.step_s,
        agree_every=deployment.tuning.pace.agree_every,
        max_slowdown=terms.max_slowdown,
    )


def _timing(deployment: Deployment, window: LoadWindow | None, num_ranks: int) -> Timing:
    """What steps take now, and what moving has cost so far."""
    links, lost_s = deployment.links, deployment.meter.tally.lost_s(num_ranks)
    return Timing(
        step_s=window.step_seconds if window else 0.0,
        expert_s=window.expert_seconds if window else 0.0,
        stall_s=STALL_PER_PLAN_S,
        lost_per_byte_s=lost_s / links.num_bytes if links.num_bytes else 0.0,
        bytes_per_s=links.bytes_per_s,
        terms=deployment.tuning.planning.costs.terms(
            num_ranks=num_ranks, num_steps=window.num_steps if window else 0
        ),
    )


def _sources(
    window: LoadWindow | None, num_ranks: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if window is None or len(window.tokens) != num_ranks:
        return np.zeros(num_ranks)
    return window.tokens.astype(np.float64)


def note_pace(deployment: Deployment) -> None:
    """Remember how long steps take now, from windows that share no step with one another."""
    window = measured_window(deployment)
    if window is None or not window.num_steps:
        return
    known = deployment.paces
    if known and window.last_step < known[-1].last_step:
        known = ()  # the group began anew
    if known and window.first_step < known[-1].last_step:
        return
    per_step = float(window.tokens.sum()) / window.num_steps
    fresh = Pace(window.last_step, window.step_seconds, per_step)
    deployment.paces = (*known, fresh)[-PACES_KNOWN:]
