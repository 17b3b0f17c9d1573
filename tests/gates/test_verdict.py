"""Every gate speaks with a reason; operators are bound by halts and budgets alone."""

from dataclasses import replace

import numpy as np
import pytest

from eplb_service.controller.planning import draft
from eplb_service.controller.pricing import Timing, payback_steps, won_seconds
from eplb_service.domain.plan import Answer, Finding, Origin, Plan
from eplb_service.gates.context import Budget, Evidence, GateContext, Standing
from eplb_service.gates.judge import judge
from eplb_service.gates.settings import GateSettings
from eplb_service.gates.timely import balanced, cooling, lacking
from tests.planning.tasks import layers_of, task_of

EVIDENCE = Evidence(
    num_steps=100,
    coverage=1.0,
    tokens_per_expert=100.0,
    imbalance_mean=1.5,
    imbalance_worst=2.0,
)
STANDING = Standing(halt="", frozen_for_s=0.0, freeze_reason="", since_last_plan_s=1e6)
LAYER_COLUMN = 0
LAYER = [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


def plan_of(origin: Origin = Origin.AUTOMATIC) -> Plan:
    """Four layers that improve, one wave each."""
    current = layers_of(*[LAYER] * 4, num_experts=6)
    plan = draft(task_of(current, [[90, 30, 30, 12, 12, 6]] * 4, "packing", staging=1))
    assert isinstance(plan, Plan)
    assert len(plan.waves) >= 4
    return replace(plan, cause=replace(plan.cause, origin=origin))


def context_of(
    plan: Plan,
    *,
    evidence: Evidence = EVIDENCE,
    standing: Standing = STANDING,
    budget: Budget | None = None,
) -> GateContext:
    return GateContext(plan, evidence, standing, budget or Budget(10**6, 10**15), GateSettings())


def without_gain(plan: Plan) -> Plan:
    before = plan.price.imbalance_before
    return replace(plan, price=replace(plan.price, imbalance_after=before * 0.96))


def test_a_plan_that_no_gate_objects_to_runs_whole() -> None:
    plan = plan_of()
    verdict = judge(context_of(plan))
    assert (verdict.answer, verdict.num_waves) == (Answer.YES, len(plan.waves))
    assert {finding.answer for finding in verdict.findings} == {Answer.YES}
    assert all(finding.text for finding in verdict.findings)


OBJECTIONS: list[tuple[str, GateContext]] = [
    (
        "insufficient_samples",
        context_of(plan_of(), evidence=replace(EVIDENCE, num_steps=19)),
    ),
    (
        "insufficient_samples",
        context_of(plan_of(), evidence=replace(EVIDENCE, coverage=0.75)),
    ),
    (
        "insufficient_samples",
        context_of(plan_of(), evidence=replace(EVIDENCE, tokens_per_expert=7.9)),
    ),
    (
        "trigger",
        context_of(plan_of(), evidence=replace(EVIDENCE, imbalance_mean=1.15, imbalance_worst=1.5)),
    ),
    ("gain", context_of(without_gain(plan_of()))),
    (
        "payback",
        context_of(replace(plan_of(), price=replace(plan_of().price, payback_steps=100_001))),
    ),
    ("cooldown", context_of(plan_of(), standing=replace(STANDING, since_last_plan_s=9.9))),
    (
        "freeze",
        context_of(plan_of(), standing=replace(STANDING, frozen_for_s=60, freeze_reason="demo")),
    ),
]


@pytest.mark.parametrize(("gate", "context"), OBJECTIONS)
def test_one_objection_stops_an_automatic_plan_and_only_marks_an_operators(
    gate: str, context: GateContext
) -> None:
    verdict = judge(context)
    said = {f.gate for f in verdict.findings if f.answer is Answer.NO}
    assert (verdict.answer, verdict.num_waves, said) == (Answer.NO, 0, {gate})
    cause = replace(context.plan.cause, origin=Origin.OPERATOR)
    asked = replace(context, plan=replace(context.plan, cause=cause))
    allowed = judge(asked)
    assert (allowed.answer, allowed.num_waves) == (Answer.YES, len(context.plan.waves))
    assert gate in {f.gate for f in allowed.findings if f.answer is Answer.NO}


@pytest.mark.parametrize("origin", list(Origin))
def test_a_halt_binds_everybody(origin: Origin) -> None:
    held = replace(STANDING, halt="halt 3: slot digest wrong on rank 2")
    verdict = judge(context_of(plan_of(origin), standing=held))
    assert verdict.answer is Answer.NO
    assert "slot digest wrong" in next(f.text for f in verdict.findings if f.gate == "halt")


@pytest.mark.parametrize("origin", list(Origin))
def test_a_budget_throttles_everybody_to_the_waves_that_fit(origin: Origin) -> None:
    plan = plan_of(origin)
    costs = [len(wave.content.transfers) for wave in plan.waves]
    exact = judge(context_of(plan, budget=Budget(sum(costs), 10**15)))
    assert exact.answer is Answer.YES
    tight = judge(context_of(plan, budget=Budget(sum(costs) - 1, 10**15)))
    assert (tight.answer, tight.num_waves) == (Answer.THROTTLE, len(plan.waves) - 1)
    first = judge(context_of(plan, budget=Budget(costs[0], 10**15)))
    assert (first.answer, first.num_waves) == (Answer.THROTTLE, 1)
    none = judge(context_of(plan, budget=Budget(costs[0] - 1, 10**15)))
    assert (none.answer, none.num_waves) == (Answer.NO, 0)


def test_bytes_are_a_budget_of_their_own() -> None:
    plan = plan_of()
    verdict = judge(context_of(plan, budget=Budget(10**6, plan.price.num_bytes - 1)))
    assert verdict.answer is Answer.THROTTLE
    assert verdict.num_waves < len(plan.waves)


@pytest.mark.parametrize(("gate", "side"), [("layer_budget", LAYER_COLUMN), ("rank_budget", 3)])
def test_layers_and_ranks_have_budgets_of_their_own(gate: str, side: int) -> None:
    plan = plan_of(Origin.OPERATOR)
    ranks = plan.waves[0].placement.layout.rank_of_slot()
    moves = [wave.content.transfers[:, side] for wave in plan.waves]
    numbers = moves if gate == "layer_budget" else [ranks[targets] for targets in moves]
    most = int(np.bincount(np.concatenate(numbers)).max())
    first = int(np.bincount(numbers[0]).max())

    def judged(limit: int) -> Finding:
        limits = {"per_layer" if gate == "layer_budget" else "per_rank": limit}
        verdict = judge(context_of(plan, budget=replace(Budget(10**6, 10**15), **limits)))
        return next(found for found in verdict.findings if found.gate == gate)

    assert judged(most).answer is Answer.YES
    beyond = judged(most - 1)
    assert f"{most} moves in one {gate[:-7]} exceed the budget of {most - 1}" in beyond.text
    if first > 0:
        none = judged(first - 1)
        assert none.answer is Answer.NO
        assert f"its first wave alone costs {first}; raise budget.max_moves_per_" in none.text


def test_gain_is_measured_where_the_plan_changes_something() -> None:
    plan = plan_of()
    quiet = np.ones(96)
    price = replace(
        plan.price,
        imbalance_before=np.concatenate([plan.price.imbalance_before, quiet]),
        imbalance_after=np.concatenate([plan.price.imbalance_after, quiet]),
    )
    assert judge(context_of(replace(plan, price=price))).answer is Answer.YES


def test_a_window_without_tokens_lacks_samples_and_not_a_number_is_no_imbalance() -> None:
    nothing = replace(EVIDENCE, imbalance_mean=float("nan"), imbalance_worst=float("nan"))
    assert "no tokens in any layer" in lacking(nothing, GateSettings())


def test_one_layer_far_out_of_balance_is_enough_to_plan() -> None:
    one = replace(EVIDENCE, imbalance_mean=1.01, imbalance_worst=1.51)
    assert balanced(one, GateSettings()) == ""


def test_the_cooldown_doubles_for_plans_that_came_to_nothing() -> None:
    standing = replace(STANDING, since_last_plan_s=39.0)
    settings = GateSettings(cooldown_s=10.0)
    assert cooling(standing, settings) == ""
    assert cooling(replace(standing, num_fruitless=1), settings) == ""
    text = cooling(replace(standing, num_fruitless=2), settings)
    assert "39 s ago, at least 40 s must pass (10 s, doubled 2 times" in text
    long_ago = replace(standing, since_last_plan_s=641.0, num_fruitless=500)
    assert cooling(long_ago, settings) == ""


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("samples", "100 steps, coverage 1.00, 100.0 tokens per expert"),
        ("trigger", "a plan is due above 1.15 and 1.5"),
        ("cooldown", "no plan ended yet"),
    ],
)
def test_gates_that_agree_say_by_which_figures(gate: str, expected: str) -> None:
    never = replace(STANDING, since_last_plan_s=float("inf"))
    findings = judge(context_of(plan_of(), standing=never)).findings
    assert expected in next(f.text for f in findings if f.gate == gate)


def test_figures_that_are_not_known_are_not_shown_as_nan() -> None:
    plan, nan = plan_of(Origin.OPERATOR), float("nan")
    price = replace(
        plan.price,
        imbalance_before=plan.price.imbalance_before * nan,
        imbalance_after=plan.price.imbalance_after * nan,
    )
    nothing = replace(EVIDENCE, num_steps=0, imbalance_mean=nan, imbalance_worst=nan)
    verdict = judge(context_of(replace(plan, price=price), evidence=nothing))
    assert verdict.answer is Answer.YES
    assert not [f.text for f in verdict.findings if "nan" in f.text]
    assert "none of them has load" in next(f.text for f in verdict.findings if f.gate == "gain")


def test_f71_the_pay_back_is_said_with_the_five_numbers_that_it_rests_on() -> None:
    plan = plan_of()
    timing = Timing(step_s=0.040, expert_s=0.012, stall_s=0.9)
    price = replace(
        plan.price,
        payback_steps=payback_steps(timing, before=1.40, after=1.05),
        step_s=timing.step_s,
        expert_s=timing.expert_s,
        won_s=won_seconds(timing, before=1.40, after=1.05),
        stall_s=timing.stall_s,
    )
    findings = judge(context_of(replace(plan, price=price))).findings
    text = next(f.text for f in findings if f.gate == "payback")
    for number in ("40.0 ms", "12.0 ms", "3.00 ms", "900.0 ms", "after 300 steps"):
        assert number in text


def test_a_budget_that_not_even_one_wave_fits_names_its_setting() -> None:
    findings = judge(context_of(plan_of(), budget=Budget(0, 10**15))).findings
    text = next(f.text for f in findings if f.gate == "move_budget")
    assert "exceed the budget of 0, and its first wave alone costs" in text
    assert "raise budget.max_moves" in text
