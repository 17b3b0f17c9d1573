"""A plan is sound, priced by the real dispatch tables, and the same for the same question."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from eplb_service.controller.planning import NothingToDo, draft
from eplb_service.controller.pricing import Timing, payback_steps
from eplb_service.domain.errors import (
    InvalidPlacement,
    InvalidSettings,
    MisfitPlacement,
    PlannerFailed,
    UnknownPolicy,
)
from eplb_service.domain.heat import imbalance
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.plan import Plan
from eplb_service.domain.rules import violations
from eplb_service.domain.shares import Ownership
from eplb_service.policies import catalog
from eplb_service.policies.request import PolicyRequest
from tests.planning.tasks import by_policy, layers_of, task_of

CURRENT = layers_of([[0, 1, 2], [3, 4, 5], [0, 1, 2]], num_experts=6)
HEAT = [[90, 30, 30, 12, 12, 6]]
SQUARE = layers_of([[0, 1], [2, 3]], [[0, 1], [2, 3]], num_experts=4)


def drawn(plan: Plan | NothingToDo) -> Plan:
    assert isinstance(plan, Plan), plan
    return plan


def end_of(plan: Plan) -> Placement:
    return plan.waves[-1].placement


@pytest.mark.parametrize("policy", ["packing", "incremental", "random"])
def test_a_plan_leads_to_a_sound_placement_and_travels_between_processes(policy: str) -> None:
    task = pickle.loads(pickle.dumps(task_of(CURRENT, HEAT, policy)))
    plan: Plan = pickle.loads(pickle.dumps(drawn(draft(task))))
    held = CURRENT
    for wave in plan.waves:
        held = wave.content.apply(held)
    assert held.digest() == end_of(plan).digest()
    assert not violations(held)
    assert plan.base == CURRENT.digest()
    assert plan.price.num_moves == sum(len(wave.content.transfers) for wave in plan.waves)


def test_the_same_question_gets_the_same_plan_under_the_same_name() -> None:
    first, second = (drawn(draft(task_of(CURRENT, HEAT))) for _ in range(2))
    other = drawn(draft(task_of(CURRENT, [[6, 12, 12, 30, 30, 90]])))
    assert first.plan_id == second.plan_id != other.plan_id
    assert end_of(first).digest() == end_of(second).digest()


@pytest.mark.parametrize("ownership", list(Ownership))
def test_the_price_is_what_the_dispatch_tables_do(ownership: Ownership) -> None:
    plan = drawn(draft(task_of(CURRENT, HEAT, "packing", ownership=ownership)))
    placement, shares = end_of(plan), plan.waves[-1].shares
    ranks, load = placement.layout.rank_of_slot(), np.zeros((1, 3))
    for source in range(3):
        for expert, slots in enumerate(shares.table_of(source)[0]):
            for slot in slots:
                load[0, ranks[slot]] += HEAT[0][expert] / 3 / len(slots)
    assert plan.price.imbalance_after.tolist() == pytest.approx(imbalance(load).tolist())


def test_a_copy_within_a_rank_costs_no_bytes() -> None:
    old = layers_of([[0, 1], [2, 3]], num_experts=4)
    new = layers_of([[3, 1], [2, 0]], num_experts=4)
    plan = drawn(draft(task_of(old, [[4, 3, 2, 1]], new)))
    assert (plan.price.num_moves, plan.price.num_bytes) == (2, 2 * 44 * 2**20)


def test_time_won_pays_back_time_lost() -> None:
    timing = Timing(step_s=0.040, expert_s=0.012, stall_s=0.9)
    assert payback_steps(timing, before=1.40, after=1.05) == pytest.approx(300)
    assert payback_steps(timing, before=1.05, after=1.05) == float("inf")


def test_the_price_of_a_plan_follows_what_moving_has_cost_and_how_fast_links_were() -> None:
    task = task_of(CURRENT, HEAT, "packing")
    nominal = drawn(draft(task)).price
    timing = replace(task.timing, lost_per_byte_s=2e-9, bytes_per_s=1e9)
    price = drawn(draft(replace(task, timing=timing))).price
    assert nominal.stall_s == 0.9
    assert price.stall_s == pytest.approx(2e-9 * price.num_bytes)
    busiest = max(
        np.bincount(CURRENT.layout.rank_of_slot()[moves[:, side]]).max()
        for moves in [drawn(draft(task)).waves[0].content.transfers]
        for side in (2, 3)
    )
    waited = busiest * 44 * 2**20 / 1e9 / 0.040
    assert price.payback_steps == pytest.approx(price.stall_s / price.won_s + waited)


def test_f55_what_moves_is_told_by_layer_with_the_seconds_that_it_will_take() -> None:
    current = layers_of(*[[[0, 1, 2], [3, 4, 5], [0, 1, 2]]] * 3, num_experts=6)
    task = task_of(current, HEAT * 3, "packing", layers=(0, 2))
    assert np.isnan(drawn(draft(task)).price.moving.seconds).all()
    task = replace(task, timing=replace(task.timing, bytes_per_s=1e9))
    plan = drawn(draft(task))
    price, each = plan.price, 44 * 2**20
    moved = np.concatenate([wave.content.transfers for wave in plan.waves])
    assert price.moving.num_moves.tolist() == np.bincount(moved[:, 0], minlength=3).tolist()
    assert price.moving.num_moves[1] == 0 < price.moving.num_moves[0]
    assert price.moving.num_moves.sum() == price.num_moves
    assert price.moving.num_bytes.sum() == price.num_bytes
    ranks = CURRENT.layout.rank_of_slot()
    for layer in range(3):
        own = moved[moved[:, 0] == layer]
        busiest = max((np.bincount(ranks[own[:, s]]).max() for s in (2, 3) if len(own)), default=0)
        assert price.moving.seconds[layer] == pytest.approx(busiest * each / 1e9)
    assert 0 < price.moving.whole_s <= price.moving.seconds.sum() + 1e-9


def test_the_layers_asked_for_are_the_only_ones_that_change() -> None:
    current = layers_of(*[[[0, 1, 2], [3, 4, 5], [0, 1, 2]]] * 3, num_experts=6)
    plan = drawn(draft(task_of(current, HEAT * 3, "packing", layers=(1,))))
    assert {n for wave in plan.waves for n in wave.content.layers.tolist()} == {1}


@pytest.mark.parametrize(
    ("current", "heat", "policy", "reason"),
    [
        (CURRENT, [[0] * 6], "incremental", "insufficient_samples"),
        (CURRENT, [[0] * 6], "packing", "insufficient_samples"),
        (layers_of([[0, 1], [0, 1]], num_experts=2), [[7, 7]], "packing", "balanced"),
    ],
)
def test_nothing_to_do_is_an_answer_with_a_reason(
    current: Placement, heat: list[list[float]], policy: str, reason: str
) -> None:
    answer = draft(task_of(current, heat, policy))
    assert isinstance(answer, NothingToDo)
    assert answer.reason == reason


def test_going_where_one_is_needs_no_plan() -> None:
    reordered = layers_of([[2, 1, 0], [3, 4, 5], [0, 1, 2]], num_experts=6)
    answer = draft(task_of(CURRENT, HEAT, reordered))
    assert isinstance(answer, NothingToDo)
    assert answer.reason == "same_placement"


def test_going_there_and_back_restores_every_slot() -> None:
    there = drawn(draft(task_of(CURRENT, HEAT, "packing")))
    back = drawn(draft(task_of(end_of(there), HEAT, CURRENT)))
    assert end_of(back).digest() == CURRENT.digest()


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        (layers_of([[0, 1], [2, 2]], num_experts=4), MisfitPlacement, "layers 1, expected 2"),
        (
            layers_of([[0, 1], [2, 3]], [[2, 2], [0, 3]], num_experts=4),
            InvalidPlacement,
            "layer 1: expert 1 is missing.*layer 1: duplicate: expert 2",
        ),
        (
            layers_of([[0, 1], [2, 9]], [[0, 1], [2, 3]], num_experts=4),
            InvalidPlacement,
            "unknown expert 9 in rank 1 slot 1.*expert 3 is missing",
        ),
    ],
)
def test_a_target_that_is_unsound_or_does_not_fit_is_refused_whole(
    target: Placement, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        draft(task_of(SQUARE, [[1, 2, 3, 4]] * 2, target))


def test_shared_experts_cannot_be_moved() -> None:
    old = placement_from_ranks([[[0, 1, 4], [2, 3, 4]]], num_experts=4, num_shared=1)
    new = placement_from_ranks([[[0, 4, 1], [2, 3, 4]]], num_experts=4, num_shared=1)
    same = draft(task_of(old, [[1, 2, 3, 4]], new))
    assert isinstance(same, NothingToDo)
    moved = placement_from_ranks([[[0, 1, 2], [2, 3, 4]]], num_experts=4, num_shared=1)
    with pytest.raises(InvalidPlacement, match="shared experts are pinned"):
        draft(task_of(old, [[1, 2, 3, 4]], moved))


def raises(_: PolicyRequest) -> Placement:
    raise ZeroDivisionError("no ranks left")


def duplicates(request: PolicyRequest) -> Placement:
    phy2log = request.placement.phy2log.copy()
    phy2log[1] = [2, 2, 0, 3]
    return Placement(phy2log, 4, request.placement.layout)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (raises, "policy broken raised ZeroDivisionError: no ranks left"),
        (duplicates, "policy broken returned something unsound.*layer 1: expert 1 is missing"),
    ],
)
def test_a_policy_that_fails_is_named_and_nothing_of_its_proposal_is_used(
    policy: catalog.Policy, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = catalog.Listed("broken", policy, needs_heat=True, about="")
    monkeypatch.setitem(catalog._BY_NAME, "broken", broken)  # pyright: ignore[reportPrivateUsage] - a plug-in
    with pytest.raises(PlannerFailed, match=says):
        draft(task_of(SQUARE, [[10, 10, 70, 10]] * 2, "broken"))


def test_an_unknown_policy_is_no_planner_failure() -> None:
    with pytest.raises(UnknownPolicy, match="there are: static"):
        draft(task_of(CURRENT, HEAT, "swifter"))


def test_a_policy_that_does_not_fit_gives_way_with_a_note_unless_it_was_forced() -> None:
    with pytest.raises(InvalidSettings, match="hierarchical"):
        draft(task_of(CURRENT, HEAT, "hierarchical"))
    plan = drawn(draft(task_of(CURRENT, HEAT, by_policy("hierarchical", is_forced=False))))
    assert plan.policy == "packing"
    assert "packing is used instead of hierarchical" in plan.heat_note


def test_a_policy_for_shares_gives_way_where_none_are_set_unless_it_was_forced() -> None:
    unforced = task_of(CURRENT, HEAT, by_policy("connected", is_forced=False))
    plan = drawn(draft(unforced))
    assert plan.policy == "incremental"
    assert "incremental is used instead of connected: shares are not set here" in plan.heat_note
    shared = replace(unforced, limits=replace(unforced.limits, sets_shares=True))
    for asked in (shared, task_of(CURRENT, HEAT, "connected")):
        found = draft(asked)
        assert isinstance(found, NothingToDo)
        assert found.text == "policy connected finds nothing that is worth a move"


def test_ranks_without_room_to_stage_get_no_plan() -> None:
    task = task_of(CURRENT, HEAT, "packing")
    with pytest.raises(MisfitPlacement, match="staging memory"):
        draft(replace(task, limits=replace(task.limits, staging_rows=(0, 0, 0))))


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -5.0])
@pytest.mark.parametrize("policy", ["static", "packing", "incremental", "random"])
def test_heat_that_was_not_counted_is_refused_by_its_place(policy: str, count: float) -> None:
    current = layers_of([[0, 1], [2, 3]], [[0, 1], [2, 3]], num_experts=4)
    with pytest.raises(PlannerFailed, match=f"layer 1 expert 2 is {count:g}, .* nothing changed"):
        draft(task_of(current, [[1, 1, 1, 1], [9, 1, count, 1]], policy))


def test_heat_of_another_shape_is_refused_with_both() -> None:
    current = layers_of([[0, 1], [2, 3]], num_experts=4)
    with pytest.raises(PlannerFailed, match=r"shape \[2, 4\], expected \[1, 4\]"):
        draft(task_of(current, [[1, 1, 1, 1]] * 2))


def test_groups_of_the_model_stay_on_one_node_each() -> None:
    current = layers_of([[0, 1], [2, 3], [4, 5], [6, 7]], num_experts=8)
    heat = [[50, 40, 45, 44, 3, 1, 2, 1]]
    nodes = ("a", "a", "b", "b")
    task = task_of(current, heat, "hierarchical", nodes=nodes, num_groups=4)
    after = end_of(drawn(draft(task))).phy2log.reshape(2, 2, 2)
    groups = [sorted({int(expert) // 2 for expert in node.flat}) for node in after]
    assert sorted(groups) == [[0, 3], [1, 2]]


def test_a_plan_says_that_replicas_cannot_join_all_ranks() -> None:
    plan = drawn(draft(task_of(SQUARE, [[9, 9, 1, 1], [9, 1, 9, 1]], "connected")))
    assert "0 spare slots cannot join 2 ranks" in plan.heat_note
