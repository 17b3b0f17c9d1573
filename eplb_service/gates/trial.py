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
PACES_KNOWN = 8
"""Windows before a plan whose step times are remembered."""
FEWEST_PACES = 3
"""Windows without which the length of a step has no known spread, and convicts nobody."""


class Ruling(StrEnum):
    """What became of a plan's promise."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a step took in one window."""

    last_step: int
    step_s: float
    tokens_per_step: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What stood before a plan, and what it promised."""

    plan_id: str
    promised: float
    """Drop of the mean imbalance that the plan promised."""
    paces: tuple[Pace, ...]
    """Of the windows before it, which share no step; oldest first."""
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

    >>> trial = Trial("a1", promised=0.5, paces=(), is_rollback=False)
    >>> judge_trial(trial, Aftermath(1.6, 1.1, 0.02, 0.04, 100.0), margin=0.05).ruling.value
    'better'
    >>> judge_trial(trial, Aftermath(1.1, 1.3, 0.02, 0.04, 100.0), margin=0.05).ruling.value
    'worse'
    """
    won = after.imbalance_old - after.imbalance_new
    slower, spread = _slower(trial.paces, after)
    text = (
        f"imbalance {after.imbalance_new:.3f} measured, {after.imbalance_old:.3f} on the placement "
        f"before under the same load, steps {slower:+.1%} (+-{spread:.1%}); promised was "
        f"{_told(trial.promised)}"
    )
    if -won > after.noise + margin * after.imbalance_old or slower > margin + spread:
        ruling = Ruling.WORSE
    elif won > after.noise:
        ruling = Ruling.BETTER
    else:
        ruling = Ruling.SAME
    kept = min(1.0, max(0.0, won / trial.promised)) if trial.promised > 0 else float("nan")
    return Judgement(ruling, kept, text)


def _told(promised: float) -> str:
    return (
        "nothing, as no load was measured then" if isnan(promised) else f"a drop of {promised:.3f}"
    )


def trust(kept: tuple[float, ...]) -> float:
    """How much of a promise to believe, from the share that earlier plans kept; 1 without any.

    One doubtful plan is not the rule: a promise kept in full is always among those averaged.

    >>> trust(()), trust((0.0, 0.5)), trust((1.0,))
    (1.0, 0.5, 1.0)
    """
    known = [share for share in kept[-PROMISES_KEPT:] if not isnan(share)]
    return (1.0 + sum(known)) / (1 + len(known))


def _slower(paces: tuple[Pace, ...], after: Aftermath) -> tuple[float, float]:
    """By which share steps are longer than before, and how far apart they were before.

    Only windows with about as many tokens a step say anything; of too few, nothing is said.
    """
    alike = sorted(p.step_s for p in paces if _is_same(p.tokens_per_step, after.tokens_per_step))
    if len(alike) < FEWEST_PACES or not alike[0] > 0:
        return 0.0, 0.0
    usual = alike[len(alike) // 2]
    return after.step_s / usual - 1.0, (alike[-1] - alike[0]) / usual


def _is_same(before: float, after: float) -> bool:
    return before > 0 and abs(after / before - 1.0) <= SAME_TOKENS
