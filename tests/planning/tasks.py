"""Planning tasks for small deployments, with everything that a test does not name left plain."""

from collections.abc import Sequence

import numpy as np

from eplb_service.controller.planning import ByPolicy, Goal, PlanningInput, ToPlacement
from eplb_service.controller.pricing import Timing
from eplb_service.domain.heat import Heat
from eplb_service.domain.ids import Epoch
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.plan import Cause, Origin
from eplb_service.domain.shares import Ownership
from eplb_service.domain.waves import WaveLimits

EPOCH = Epoch(41)
Ranks = Sequence[Sequence[int]]


def layers_of(*layers: Ranks, num_experts: int) -> Placement:
    """Build a placement from each layer's ranks."""
    return placement_from_ranks(layers, num_experts=num_experts)


def heat_from(tokens: Sequence[Sequence[float]], *, num_steps: int = 100) -> Heat:
    counts = np.array(tokens, dtype=np.float64)
    return Heat(counts, None, num_steps, 1.0)


def by_policy(name: str, *, max_moves: int | None = None, is_forced: bool = True) -> ByPolicy:
    return ByPolicy(name, max_moves, seed=0, is_forced=is_forced)


def task_of(
    current: Placement,
    tokens: Sequence[Sequence[float]],
    goal: Goal | Placement | str = "incremental",
    *,
    layers: tuple[int, ...] = (),
    staging: int = 8,
    ownership: Ownership = Ownership.REPLICATED,
    nodes: tuple[str, ...] = (),
    num_groups: int = 1,
) -> PlanningInput:
    """Ask for a plan; replicas share evenly unless tokens are said to be the ranks' own."""
    num_ranks = current.layout.num_ranks
    if isinstance(goal, Placement):
        goal = ToPlacement(goal)
    return PlanningInput(
        base_epoch=EPOCH,
        current=current,
        heat=heat_from(tokens),
        sources=np.ones(num_ranks),
        goal=by_policy(goal) if isinstance(goal, str) else goal,
        layers=layers,
        num_groups=num_groups,
        limits=WaveLimits((staging,) * num_ranks, 10**9, 44 * 2**20, ownership, nodes=nodes),
        timing=Timing(step_s=0.040, expert_s=0.012, stall_s=0.9),
        cause=Cause(Origin.OPERATOR, "test"),
    )
