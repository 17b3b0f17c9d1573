"""A plan is judged on the window after it, beside what the placement before would have done.

Load moves on while a plan runs, so what was measured before it is no yardstick: the placement
before is priced under the heat that came after.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import isnan

SAME_TOKENS = 0.1
"""Of tokens per step; beyond it step times say nothing of a placement."""
PROMISES_KEPT = 8
"""Plans whose outcome is remembered."""


class Ruling(StrEnum):
    """What became of a plan's promise."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Trial:
    """What stood before a plan, and what it promised."""

    plan_id: str
    promised: float
    """Drop of the mean imbalance that the plan promised."""
    step_s: float
    """Mean length of a step before it; 0 where none was measured."""
    tokens_per_step: float
    is_rollback: bool


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What the window after it says, all layers with data."""

    imbalance_old: float
    """Of the placement before, under the heat of this window."""
    imbalance_new: float
    """Measured."""
    noise: float
    """Imbalance that counting alone feigns in this window."""
    step_s: float
    tokens_per_step: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """A plan's outcome, with numbers in words."""

    ruling: Ruling
    kept: float
    """Share of the promised drop that came true, 0 to 1; NaN where nothing was promised."""
    text: str


def judge_trial(trial: Trial, after: Aftermath, *, margin: float) -> Judgement:
    """Say whether a plan did what it promised; worse beyond noise and margin is worse.

    margin    share by which imbalance or step time must have grown to count as worse

    >>> trial = Trial("a1", promised=0.5, step_s=0.04, tokens_per_step=100.0, is_rollback=False)
    >>> judge_trial(trial, Aftermath(1.6, 1.1, 0.02, 0.04, 100.0), margin=0.05).ruling.value
    'better'
    >>> judge_trial(trial, Aftermath(1.1, 1.3, 0.02, 0.04, 100.0), margin=0.05).ruling.value
    'worse'
    """
    won = after.imbalance_old - after.imbalance_new
    is_comparable = _is_same(trial.tokens_per_step, after.tokens_per_step)
    slower = after.step_s / trial.step_s - 1.0 if trial.step_s and is_comparable else 0.0
    text = (
        f"imbalance {after.imbalance_new:.3f} measured, {after.imbalance_old:.3f} on the placement "
        f"before under the same load, steps {slower:+.1%}; promised was a drop of "
        f"{trial.promised:.3f}"
    )
    if -won > after.noise + margin * after.imbalance_old or slower > margin:
        ruling = Ruling.WORSE
    elif won > after.noise:
        ruling = Ruling.BETTER
    else:
        ruling = Ruling.SAME
    kept = min(1.0, max(0.0, won / trial.promised)) if trial.promised > 0 else float("nan")
    return Judgement(ruling, kept, text)


def trust(kept: tuple[float, ...]) -> float:
    """How much of a promise to believe, from the share that earlier plans kept; 1 without any.

    One doubtful plan is not the rule: a promise kept in full is always among those averaged.

    >>> trust(()), trust((0.0, 0.5)), trust((1.0,))
    (1.0, 0.5, 1.0)
    """
    known = [share for share in kept[-PROMISES_KEPT:] if not isnan(share)]
    return (1.0 + sum(known)) / (1 + len(known))


def _is_same(before: float, after: float) -> bool:
    return before > 0 and abs(after / before - 1.0) <= SAME_TOKENS
