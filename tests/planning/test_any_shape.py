"""Whatever the shape and the load: a sound plan, nothing to do, or a refusal with a name."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb_service.controller.planning import NothingToDo, PlanningInput, draft
from eplb_service.domain.errors import InvalidRequest, PlannerFailed
from eplb_service.domain.placement import EMPTY
from eplb_service.domain.plan import Plan
from eplb_service.domain.rules import require_emptied, violations
from eplb_service.domain.shares import Ownership
from eplb_service.domain.waves import WaveLimits
from eplb_service.policies.catalog import POLICIES
from tests.planning.placements import random_placement
from tests.planning.tasks import by_policy, heat_from, task_of

NAMES = [listed.name for listed in POLICIES]
HUGE = float(2**63)


def some_heat(rng: Random, num_experts: int) -> list[float]:
    """One layer: silent, level, one expert with everything, tied, huge, or no count at all."""
    kinds: list[list[float]] = [
        [0.0] * num_experts,
        [25.0] * num_experts,
        [1e6] + [0.0] * (num_experts - 1),
        [float(rng.choice((0, 7))) for _ in range(num_experts)],
        [rng.random() * HUGE for _ in range(num_experts)],
        [1.0 / (1 + n) ** 2 for n in range(num_experts)],
        [rng.lognormvariate(3, 1.5) for _ in range(num_experts)],
    ]
    if rng.random() < 0.05:
        return [rng.choice((float("nan"), float("inf"), -1.0)), *kinds[1]][:num_experts]
    return rng.choice(kinds)


def any_task(seed: int) -> PlanningInput:
    """Draw a deployment and a load: 1 to 9 ranks of like or unlike slots, full or with room."""
    rng = Random(seed)
    num_ranks = rng.randint(1, 9)
    most = rng.randint(1, 6)
    alike = rng.random() < 0.6
    slots = [most if alike else rng.randint(1, most) for _ in range(num_ranks)]
    num_experts = rng.choice((rng.randint(1, sum(slots)), sum(slots), max(slots), 1))
    num_layers = rng.randint(1, 3)
    placement = random_placement(
        rng, num_layers=num_layers, num_experts=num_experts, slots_per_rank=slots
    )
    heat = [some_heat(rng, num_experts) for _ in range(num_layers)]
    goal = replace(
        by_policy(rng.choice(NAMES), max_moves=rng.choice((None, 0, 3, 40)), is_forced=False),
        seed=seed,
    )
    masked = tuple(n for n in range(num_ranks) if rng.random() < 0.2) if rng.random() < 0.4 else ()
    nodes = tuple(f"n{rank // 2}" for rank in range(num_ranks)) if rng.random() < 0.5 else ()
    limits = WaveLimits(
        staging_rows=(rng.choice((2, 8)),) * num_ranks,
        round_bytes=10**6,
        bytes_per_expert=10**6,
        ownership=rng.choice(list(Ownership)),
        nodes=nodes,
        sets_shares=rng.random() < 0.5,
        masked=masked,
    )
    task = task_of(placement, heat, goal)
    return replace(task, limits=limits, heat=heat_from(heat))


@pytest.mark.parametrize("quarter", range(4))
@settings(max_examples=250)
@given(seed=st.integers(0, 2**30))
def test_every_shape_is_answered(quarter: int, seed: int) -> None:
    task = any_task(4 * seed + quarter)
    counted = bool((np.isfinite(task.heat.tokens) & (task.heat.tokens >= 0)).all())
    masked = task.limits.masked
    if not counted:
        with pytest.raises(PlannerFailed, match="expected a count of 0 or more"):
            draft(task)
        return
    if not _has_room(task):
        with pytest.raises(InvalidRequest, match=r"without room|one must stay"):
            draft(task)
        return
    found = draft(task)
    if isinstance(found, NothingToDo):
        return
    assert isinstance(found, Plan)
    end = found.waves[-1].placement
    assert not violations(end)
    require_emptied(end, range(end.num_layers), masked)
    held = task.current
    for wave in found.waves:
        held = wave.content.apply(held)
    assert (held.phy2log == end.phy2log).all()
    assert (end.phy2log[task.current.phy2log == EMPTY] == EMPTY).all() or masked or _back(task)


def _has_room(task: PlanningInput) -> bool:
    """Whether ranks that are not masked have a usable slot for every expert."""
    current, masked = task.current, task.limits.masked
    is_masked = np.isin(current.layout.rank_of_slot(), masked)
    usable = (current.routed() | np.isin(current.layout.rank_of_slot(), _back(task))) & ~is_masked
    has_rank = len(masked) < current.layout.num_ranks
    return has_rank and int(usable.sum(axis=1).min()) >= current.num_experts


def _back(task: PlanningInput) -> list[int]:
    """Ranks that hold nothing in some layer, as ones that were drained."""
    routed, layout = task.current.routed(), task.current.layout
    return [
        rank
        for rank in range(layout.num_ranks)
        if not routed[:, layout.slots_of(rank)].any(axis=1).all()
    ]
