"""Reported cases of planning (families F01 to F09, F25, F47, F48, F64, F70, F71)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from eplb_service.controller.planning import (
    NothingToDo,
    draft,
)
from eplb_service.controller.pricing import Timing, payback_steps
from eplb_service.domain.errors import InvalidPlacement, InvalidSettings
from eplb_service.domain.heat import imbalance, mean_with_data, rank_load
from eplb_service.domain.layout import SlotLayout, uniform_layout
from eplb_service.domain.placement import initial_placement, placement_from_ranks
from eplb_service.domain.plan import Plan
from eplb_service.domain.rules import violations
from eplb_service.gates.context import Evidence
from eplb_service.gates.settings import GateSettings
from eplb_service.gates.timely import balanced
from eplb_service.policies.bounds import Topology
from eplb_service.policies.catalog import suited
from eplb_service.policies.request import PolicyRequest, even_split, predicted_load
from tests.planning.tasks import by_policy, layers_of, task_of

Ranks = Sequence[Sequence[int]]
START = [[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3]]


@dataclass(frozen=True)
class PlanCase:
    """What is served, the heat, and what a plan must come to in each layer."""

    case: str
    ranks: tuple[Ranks, ...]
    heat: tuple[tuple[float, ...], ...]
    max_load: tuple[float | None, ...]
    """None: the layer must stay as it is."""
    max_changed: int = 10**6


PLANS = (
    PlanCase(
        "F02 one silent layer among busy ones",
        (START, START),
        ((0,) * 8, (400, *[40] * 7)),
        (None, 189),
    ),
    PlanCase(
        "F02 two silent layers and a mild one",
        (START, START, START),
        ((0,) * 8, (0,) * 8, (100, 90, 80, 10, 10, 10, 10, 10)),
        (None, None, 86.7),
    ),
    PlanCase(
        "F03 one expert takes everything",
        ([[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]],),
        ((1000, 1, 1, 1, 1),),
        (201,),
    ),
    PlanCase(
        "F03 one expert takes everything, three ranks",
        ([[0, 1, 2], [3, 4, 0], [1, 2, 3]],),
        ((0, 0, 9000, 0, 0),),
        (3000,),
    ),
    PlanCase(
        "F04a skewed load tempts duplicates",
        ([[0, 1, 2], [3, 4, 5], [0, 1, 2]],),
        ((90, 30, 30, 12, 12, 6),),
        (65.1,),
    ),
    PlanCase(
        "F04b skewed load tempts duplicates",
        (START,),
        ((70, 64, 33, 31, 9, 8, 3, 2),),
        (59.3,),
    ),
    PlanCase(
        "F09b fewer experts than ranks",
        ([[0, 1], [1, 2], [2, 0], [0, 1]],),
        ((30, 20, 10),),
        (15.0,),
    ),
    PlanCase(
        "F02 the last layer is silent",
        (START, START),
        ((400, *[40] * 7), (0,) * 8),
        (189, None),
    ),
    PlanCase(
        "F03 one expert takes everything, unequal slots",
        ([[0], [1, 2], [0, 1, 2]],),
        ((0, 0, 900),),
        (300,),
    ),
    PlanCase(
        "F03 one expert takes everything, empty slots stay",
        ([[0, 1, -1], [2, -1, 0], [3, 1, -1]],),
        ((0, 0, 0, 600),),
        (300,),
    ),
    PlanCase(
        "F04 as many slots as experts",
        ([[0, 1], [2, 3]],),
        ((50, 40, 20, 10),),
        (60,),
    ),
    PlanCase(
        "F04 counts near the limit of 64 bits",
        ([[0, 1], [2, 3]],),
        ((2.0**62, 2.0**61, 2.0**60, 2.0**60),),
        (1.25 * 2.0**62,),
    ),
    PlanCase(
        "F47 the phase that is planned for decides",
        (START,),
        ((500, 450, 10, 10, 10, 10, 5, 5),),
        (267,),
    ),
)
PHASES = ((500, 450, 10, 10, 10, 10, 5, 5), (4, 4, 4, 4, 4, 4, 30, 26))


@pytest.mark.parametrize("policy", ["packing", "incremental"])
@pytest.mark.parametrize("case", PLANS, ids=lambda case: case.case)
def test_a_plan_is_sound_and_near_the_best(case: PlanCase, policy: str) -> None:
    current = layers_of(*case.ranks, num_experts=len(case.heat[0]))
    plan = draft(task_of(current, case.heat, policy))
    assert isinstance(plan, Plan)
    target = plan.waves[-1].placement
    assert not violations(target)
    heat = np.array(case.heat, dtype=np.float64)
    peaks = predicted_load(heat, target, even_split(current.layout.num_ranks)).max(axis=1)
    for layer, bound in enumerate(case.max_load):
        if bound is None:
            assert (target.phy2log[layer] == current.phy2log[layer]).all()
            assert np.isnan(plan.price.imbalance_before[layer])
        else:
            assert peaks[layer] <= bound + 1e-9


def test_f02_the_mean_is_over_layers_with_data() -> None:
    plan = draft(task_of(layers_of(START, START, num_experts=8), PLANS[0].heat))
    assert isinstance(plan, Plan)
    assert mean_with_data(plan.price.imbalance_before) == pytest.approx(1.647, abs=5e-4)


@dataclass(frozen=True)
class QuietCase:
    """What is served, a load that is not worth a move, and the reason to be given."""

    case: str
    ranks: tuple[Ranks, ...]
    heat: tuple[tuple[float, ...], ...]
    reason: str


RING = [[2 * r, 2 * r + 1, (2 * r + 2) % 16] for r in range(8)]
PAIRS = [[0, 1], [0, 1], [2, 3], [2, 3]]
QUIET = (
    QuietCase("F01 no load", (RING,) * 3, ((0,) * 16,) * 3, "insufficient_samples"),
    QuietCase("F05 already balanced", (PAIRS,), ((25, 25, 25, 25),), "balanced"),
    QuietCase("F05 balanced though not equal", (PAIRS,), ((40, 10, 20, 30),), "balanced"),
    QuietCase("F01 no load on one rank", ([[0, 1, 2]],), ((0, 0, 0),), "insufficient_samples"),
    QuietCase("F05 one rank has it all", ([[0, 1, 2, 3]],), ((1, 2, 3, 400),), "balanced"),
    QuietCase("F05 ties of huge counts", (PAIRS, PAIRS), ((2.0**62,) * 4,) * 2, "balanced"),
    QuietCase("F05 unequal slots", ([[0, 1, 2], [3]],), ((10, 10, 10, 30),), "balanced"),
    QuietCase("F05 no spare slot can help", ([[0], [1], [2]],), ((900, 1, 1),), "balanced"),
    QuietCase("F43 balanced with empty slots", ([[0, 1, -1], [2, -1]],), ((9, 9, 18),), "balanced"),
    QuietCase("F02 silent beside balanced", (PAIRS, PAIRS), ((0,) * 4, (7,) * 4), "balanced"),
)


@pytest.mark.parametrize("policy", ["packing", "incremental", "static"])
@pytest.mark.parametrize("case", QUIET, ids=lambda case: case.case)
def test_no_plan_where_there_is_nothing_to_win(case: QuietCase, policy: str) -> None:
    current = layers_of(*case.ranks, num_experts=len(case.heat[0]))
    answer = draft(task_of(current, case.heat, policy))
    assert isinstance(answer, NothingToDo)
    assert answer.reason == case.reason


NOISE = (
    ((113, 83, 58, 52, 26, 21, 22, 8), 1.091),
    ((119, 97, 65, 47, 32, 18, 15, 12), 1.052),
    ((129, 103, 61, 55, 23, 27, 17, 8), 1.045),
    ((100, 86, 57, 59, 26, 18, 13, 4), 1.146),
    ((121, 97, 67, 43, 29, 27, 14, 9), 1.071),
)


@pytest.mark.parametrize(("heat", "shown"), NOISE)
def test_f06_a_noisy_window_triggers_no_plan(heat: tuple[float, ...], shown: float) -> None:
    current = layers_of([[0, 2, 7], [0, 4, 6], [1, 2, 5], [1, 3, 7]], num_experts=8)
    load = predicted_load(np.array([heat], dtype=np.float64), current, even_split(4))
    measured = float(imbalance(load)[0])
    assert measured == pytest.approx(shown, abs=5e-4)
    evidence = Evidence(100, 1.0, 48.0, imbalance_mean=measured, imbalance_worst=measured)
    assert balanced(evidence, GateSettings(trigger_imbalance=1.15))


@dataclass(frozen=True)
class ShapeCase:
    """A shape that no deployment can have, and the numbers that its refusal must name."""

    case: str
    num_experts: int
    num_ranks: int
    num_redundant: int
    says: tuple[str, ...] = field(default=())


SHAPES = (
    ShapeCase("F07a redundancy that does not divide", 128, 6, 0, ("128", "6", "4, 10, 16")),
    ShapeCase("F07b redundancy that does not divide", 256, 3, 0, ("256", "3", "2, 5, 8")),
    ShapeCase("F09a more slots than distinct replicas", 2, 2, 4, ("6 slots", "4 distinct")),
)


@pytest.mark.parametrize("case", SHAPES, ids=lambda case: case.case)
def test_a_shape_that_cannot_be_is_refused_with_usable_numbers(case: ShapeCase) -> None:
    with pytest.raises(InvalidSettings) as refused:
        uniform_layout(
            num_experts=case.num_experts,
            num_ranks=case.num_ranks,
            num_redundant=case.num_redundant,
        )
    assert all(words in str(refused.value) for words in case.says)


def uneven_nodes() -> PolicyRequest:
    placement = initial_placement(num_layers=1, num_experts=32, layout=SlotLayout((3,) * 16))
    nodes = ("a",) * 6 + ("b",) * 5 + ("c",) * 5
    heat = np.ones((1, 32))
    return PolicyRequest(heat, placement, even_split(16), (0,), topology=Topology(nodes, 4))


def test_f08_uneven_nodes_are_noticed_before_the_first_plan() -> None:
    listed, warning = suited("hierarchical", uneven_nodes())
    assert listed.name == "packing"
    assert "4 groups do not divide over 3 nodes" in warning
    with pytest.raises(InvalidSettings):
        suited("hierarchical", uneven_nodes(), is_forced=True)


def test_f25_one_bad_layer_is_refused_and_the_prediction_stays_that_of_what_is_served() -> None:
    current = layers_of([[0, 1], [2, 3]], [[0, 1], [2, 3]], num_experts=4)
    proposal = layers_of([[1, 0], [2, 3]], [[2, 2], [0, 3]], num_experts=4)
    heat = ((10, 10, 10, 10), (10, 10, 70, 10))
    with pytest.raises(InvalidPlacement, match="layer 1: duplicate: expert 2") as refused:
        draft(task_of(current, heat, proposal))
    assert "nothing changed" in str(refused.value)
    shown = imbalance(predicted_load(np.array(heat, dtype=np.float64), current, even_split(2)))
    assert shown.tolist() == [1.0, 1.6]


def test_f48_one_definition_of_balance() -> None:
    placement = placement_from_ranks([[[0], [1]]] * 2, num_experts=2)
    measured = imbalance(rank_load(np.array([[30, 10], [10, 30]]), placement))
    assert measured.tolist() == [1.5, 1.5]


def test_f47_what_is_best_for_one_phase_is_shown_for_the_other() -> None:
    plan = draft(task_of(layers_of(START, num_experts=8), PHASES[:1]))
    assert isinstance(plan, Plan)
    for_decode = np.array(PHASES[1:], dtype=np.float64)
    shown = imbalance(predicted_load(for_decode, plan.waves[-1].placement, even_split(4)))
    assert shown[0] > 1.2


@pytest.mark.parametrize("policy", ["packing", "incremental"])
@pytest.mark.slow
def test_f64_equal_heat_gives_equal_plans(policy: str) -> None:
    current = layers_of(START, num_experts=8)
    drawn = [draft(task_of(current, ((25,) * 8,), policy)) for _ in range(5)]
    plans = [plan for plan in drawn if isinstance(plan, Plan)]
    assert len(plans) == 5
    assert len({plan.plan_id for plan in plans}) == 1
    assert len({plan.waves[-1].content.dispatch for plan in plans}) == 1


def test_f70_change_little_and_the_worst_layer_first() -> None:
    ranks = [[0, 1, 5], [2, 3, 5], [4, 6, 7], [4, 6, 7]]
    heat = ((30, 30, 30, 30, 90, 30, 30, 30), (30, 30, 30, 30, 30, 90, 30, 30))
    goal = by_policy("incremental", max_moves=4)
    plan = draft(task_of(layers_of(ranks, ranks, num_experts=8), heat, goal))
    assert isinstance(plan, Plan)
    assert plan.price.num_moves <= 4
    assert {layer for wave in plan.waves for layer in wave.content.layers.tolist()} == {1}
    assert plan.price.imbalance_before.tolist() == pytest.approx([1.0, 1.4])
    assert plan.price.imbalance_after[1] <= 82.5 / 75


def test_f71_a_plan_pays_back_after_so_many_steps() -> None:
    timing = Timing(step_s=0.040, expert_s=0.012, stall_s=0.9)
    assert round(payback_steps(timing, before=1.40, after=1.05)) == 300
