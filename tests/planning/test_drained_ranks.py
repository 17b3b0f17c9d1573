"""A plan empties ranks that are drained, fills those that are back, and never names the dead."""

from dataclasses import replace

import numpy as np
import pytest

from eplb_service.controller.planning import NothingToDo, PlanningInput, draft
from eplb_service.domain.errors import InvalidPlacement, InvalidRequest, PlannerFailed
from eplb_service.domain.moves import transfers
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.plan import Plan
from eplb_service.domain.wave import SOURCE
from eplb_service.policies import catalog
from eplb_service.policies.request import PolicyRequest
from tests.planning.tasks import layers_of, task_of

FOUR = layers_of([[0, 1], [2, 3], [4, 5], [0, 2]], num_experts=6)
HEAT = [[90, 30, 30, 12, 12, 6]]


def masked(task: PlanningInput, *ranks: int, dead: tuple[int, ...] = ()) -> PlanningInput:
    return replace(task, limits=replace(task.limits, masked=ranks, dead=dead))


def plan_of(task: PlanningInput) -> Plan:
    found = draft(task)
    assert isinstance(found, Plan), found
    return found


@pytest.mark.parametrize("policy", ["static", "packing", "incremental", "connected", "random"])
def test_a_drained_rank_ends_empty_and_sends_what_only_it_holds(policy: str) -> None:
    plan = plan_of(masked(task_of(FOUR, HEAT, policy), 3))
    held = FOUR
    for wave in plan.waves:
        held = wave.content.apply(held)
    assert (held.phy2log[0, 6:] == EMPTY).all()
    assert held.replica_count().min() == 1


def test_a_dead_rank_is_never_a_source() -> None:
    spread = layers_of([[0, 1, 2], [2, 3, 4], [4, 5, 0], [0, 2, 4]], num_experts=6)
    plan = plan_of(masked(task_of(spread, HEAT, "packing"), 3, dead=(3,)))
    ranks = spread.layout.rank_of_slot()
    for wave in plan.waves:
        assert 3 not in ranks[wave.content.transfers[:, SOURCE]]
    assert (plan.waves[-1].placement.phy2log[0, 9:] == EMPTY).all()


def test_an_expert_that_only_a_dead_rank_held_is_named() -> None:
    moved = layers_of([[0, 1], [2, 5], [4, 3], [-1, -1]], num_experts=6)
    alone = layers_of([[0, 1], [2, 0], [4, 3], [5, 2]], num_experts=6)
    with pytest.raises(InvalidPlacement, match=r"expert 5, .* except on ranks \[3\], .* dead"):
        transfers(alone, moved, dead=(3,))
    with pytest.raises(InvalidPlacement, match="needs expert 5"):
        draft(masked(task_of(alone, HEAT, "static"), 3, dead=(3,)))


def test_a_rank_that_is_back_is_filled() -> None:
    emptied = layers_of([[0, 1], [2, 3], [4, 5], [-1, -1]], num_experts=6)
    plan = plan_of(task_of(emptied, HEAT, "static"))
    assert (plan.waves[-1].placement.phy2log[0, 6:] != EMPTY).all()
    assert isinstance(draft(masked(task_of(emptied, HEAT, "static"), 3)), NothingToDo)


def test_a_placement_that_uses_a_drained_rank_is_refused() -> None:
    emptied = layers_of([[0, 1], [2, 3], [4, 5], [-1, -1]], num_experts=6)
    with pytest.raises(InvalidPlacement, match="expert 0 would go to rank 3, which is drained"):
        draft(masked(task_of(emptied, HEAT, FOUR), 3))


def test_without_room_the_plan_is_refused_with_numbers_and_not_as_the_policys_fault() -> None:
    with pytest.raises(InvalidRequest, match="4 slots for 6 experts: 2 experts are without room"):
        draft(masked(task_of(FOUR, HEAT, "incremental"), 1, 3))


def test_a_policy_that_overlooks_the_mask_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(request: PolicyRequest) -> Placement:
        return replace(request.placement, phy2log=np.array([[0, 1, 2, 3, 4, 5, 0, 1]], np.int32))

    listed = replace(catalog.policy_named("static"), name="blind", draw=blind)
    monkeypatch.setitem(vars(catalog)["_BY_NAME"], "blind", listed)
    with pytest.raises(PlannerFailed, match="expert 1 would go to rank 3"):
        draft(masked(task_of(FOUR, HEAT, "blind"), 3))
