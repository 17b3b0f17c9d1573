"""Plans as the planner draws them, and a planner that hangs, raises or returns rubbish.

The real planning function judges what is drawn here, by chance, for a target.
"""

from random import Random

import numpy as np

from eplb_service.controller.machine_state import DeploymentState
from eplb_service.controller.planning import (
    ByPolicy,
    Goal,
    NothingToDo,
    PlanningInput,
    Timing,
    ToPlacement,
    draft,
)
from eplb_service.domain.errors import EplbError
from eplb_service.domain.heat import Heat
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import Cause, Origin, Plan
from eplb_service.domain.waves import WaveLimits
from eplb_service.sim.waves import Deployment, neighbour

POLICIES = ("random", "static", "greedy")
BY_POLICY = 0.3
"""Chance that a policy chooses the target; others are drawn, which is faster."""


class SimPlanner:
    """Draws plans; the policy in force changes by chance, also while a plan runs."""

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        self._deployment = deployment
        self._rng = rng
        self._policy = rng.choice(POLICIES)
        self._hung: Plan | None = None

    def change_policy(self) -> str:
        """Put another policy in force."""
        self._policy = self._rng.choice(POLICIES)
        return self._policy

    def draw(self, state: DeploymentState, *, fault: float) -> Plan | str:
        """Return a plan from what is served, or what came instead of one.

        fault    chance, 0 to 1, of each kind of planner's fault
        """
        rng = self._rng
        if self._hung is not None:
            late, self._hung = self._hung, None
            return late
        if rng.random() < fault:
            return "the planner raises"
        is_rubbish = rng.random() < fault
        try:
            plan = draft(self._task(state, self._goal(state, is_rubbish=is_rubbish)))
        except EplbError as refused:
            return f"the planner fails: {refused}"
        if isinstance(plan, NothingToDo):
            return f"nothing to plan: {plan.text}"
        if rng.random() < fault:
            self._hung = plan
            return "the planner hangs"
        return plan

    def _goal(self, state: DeploymentState, *, is_rubbish: bool) -> Goal:
        current = state.serving.placement
        if is_rubbish:
            return ToPlacement(rubbish(current, self._rng))
        if self._rng.random() >= BY_POLICY:
            return ToPlacement(neighbour(current, self._rng))
        seed = self._rng.randrange(2**31)
        return ByPolicy(self._policy, max_moves=None, seed=seed, is_forced=True)

    def _task(self, state: DeploymentState, goal: Goal) -> PlanningInput:
        current, num_ranks = state.serving.placement, self._deployment.num_ranks
        chance = np.random.default_rng(self._rng.randrange(2**31))
        tokens = chance.integers(1, 100, (current.num_layers, current.num_experts))
        return PlanningInput(
            base_epoch=state.serving.wave.epoch,
            current=current,
            heat=Heat(tokens.astype(np.float64), None, num_steps=10, coverage=1.0),
            sources=np.ones(num_ranks),
            goal=goal,
            layers=(),
            num_groups=1,
            limits=WaveLimits(
                staging_rows=(self._rng.choice((2, 4)),) * num_ranks,
                round_bytes=self._rng.randint(1, 4),
                bytes_per_expert=1,
                ownership=self._deployment.ownership,
            ),
            timing=Timing(0.04, 0.01, 0.1),
            cause=Cause(Origin.AUTOMATIC, "drawn by chance"),
        )


def rubbish(current: Placement, rng: Random) -> Placement:
    """Return a placement that no group may serve: an expert is lost."""
    phy2log = current.phy2log.copy()
    layer = rng.randrange(current.num_layers)
    lost, other = rng.sample(range(current.num_experts), 2)
    phy2log[layer][phy2log[layer] == lost] = other
    return Placement(phy2log, current.num_experts, current.layout)
