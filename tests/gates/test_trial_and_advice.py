"""A plan is judged by what came after it; advice has three answers, each with numbers."""

from dataclasses import replace
from math import inf, nan

import pytest

from eplb_service.gates.advice import Advice, Prospects, advise
from eplb_service.gates.trial import Aftermath, Pace, Ruling, Trial, judge_trial, trust

CALM = tuple(Pace(at, 0.04, 100.0) for at in (100, 200, 300))
TRIAL = Trial("a1", promised=0.4, paces=CALM, is_rollback=False)
GOOD = Prospects("", 1.5, 1.0, 0.02, step_s=0.04, expert_s=0.012, stall_s=0.4, horizon_s=600.0)


@pytest.mark.parametrize(
    ("old", "new", "step_s", "tokens", "ruling"),
    [
        (1.5, 1.1, 0.038, 100.0, Ruling.BETTER),
        (1.1, 1.1, 0.040, 100.0, Ruling.SAME),
        (1.1, 1.13, 0.040, 100.0, Ruling.SAME),
        (1.1, 1.3, 0.040, 100.0, Ruling.WORSE),
        (1.5, 1.1, 0.050, 100.0, Ruling.WORSE),
        (1.5, 1.1, 0.050, 140.0, Ruling.BETTER),
    ],
)
def test_a_plan_is_judged_by_the_load_that_came_after_it(
    old: float, new: float, step_s: float, tokens: float, ruling: Ruling
) -> None:
    after = Aftermath(old, new, 0.02, step_s, tokens)
    found = judge_trial(TRIAL, after, margin=0.05)
    assert found.ruling is ruling
    assert f"{new:.3f} measured" in found.text


def test_a_plan_that_was_drawn_without_load_promised_nothing() -> None:
    after = Aftermath(1.0, 1.02, 0.05, 0.04, 100.0)
    told = judge_trial(replace(TRIAL, promised=nan), after, margin=0.05).text
    assert told.endswith("promised was nothing, as no load was measured then")
    assert "nan" not in told


def test_steps_that_were_never_even_convict_no_plan() -> None:
    """A busy machine: before the plan steps took 36 to 46 ms, after it 46."""
    after = Aftermath(1.5, 1.1, 0.02, 0.046, 100.0)
    rough = tuple(Pace(100 * at, step_s, 100.0) for at, step_s in enumerate((0.036, 0.04, 0.046)))
    assert judge_trial(TRIAL, after, margin=0.05).ruling is Ruling.WORSE
    assert judge_trial(replace(TRIAL, paces=rough), after, margin=0.05).ruling is Ruling.BETTER
    assert judge_trial(replace(TRIAL, paces=CALM[:2]), after, margin=0.05).ruling is Ruling.BETTER


def test_load_that_moved_on_is_not_held_against_a_plan() -> None:
    after = Aftermath(
        imbalance_old=2.4, imbalance_new=1.9, noise=0.02, step_s=0.0, tokens_per_step=9
    )
    assert judge_trial(TRIAL, after, margin=0.05).ruling is Ruling.BETTER


def test_promises_that_were_not_kept_lower_what_is_believed() -> None:
    assert trust((nan,)) == 1.0
    assert trust((0.0,) * 20) == pytest.approx(1 / 9)
    assert trust((1.0, 0.9)) > 0.9


def test_advice_is_worth_trying_where_the_loss_is_won_back_in_time() -> None:
    assert advise(GOOD).advice is Advice.WORTH_TRYING
    slow = advise(replace(GOOD, stall_s=1e4))
    assert (slow.advice, slow.payback_s) == (Advice.NOT_NOW, pytest.approx(1e5))


def test_advice_is_not_now_where_the_gain_is_noise_or_none() -> None:
    assert advise(replace(GOOD, imbalance_now=1.01)).advice is Advice.NOT_NOW
    none = advise(replace(GOOD, imbalance_then=1.6))
    assert (none.advice, none.faster, none.payback_s) == (Advice.NOT_NOW, 0.0, inf)


@pytest.mark.parametrize(
    "poor",
    [
        replace(GOOD, lack="4 steps, at least 20 are needed"),
        replace(GOOD, imbalance_now=nan),
        replace(GOOD, step_s=0.0),
    ],
)
def test_advice_asks_for_patience_without_evidence(poor: Prospects) -> None:
    found = advise(poor)
    assert found.advice is Advice.NOT_ENOUGH_EVIDENCE
    assert found.text
