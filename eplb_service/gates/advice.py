"""Whether balancing pays here at all: worth trying, not now, or not enough evidence."""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite


class Advice(StrEnum):
    """Three answers; the last one asks for patience, not for a plan."""

    WORTH_TRYING = "worth trying"
    NOT_NOW = "not now"
    NOT_ENOUGH_EVIDENCE = "not enough evidence"


@dataclass(frozen=True, slots=True)
class Prospects:
    """What is known when advice is asked for."""

    lack: str
    """What the window lacks to carry a plan, in words; empty where it lacks nothing."""
    imbalance_now: float
    imbalance_then: float
    """What a plan, or shares, would reach."""
    noise: float
    """Imbalance that counting alone feigns."""
    step_s: float
    """Length of a step; 0 where none was measured."""
    expert_s: float
    """Of it, expert computation on the slowest rank."""
    stall_s: float
    """What serving loses to the plan."""
    horizon_s: float
    """In which the loss must be won back."""


@dataclass(frozen=True, slots=True)
class Advised:
    """An answer with its numbers."""

    advice: Advice
    faster: float
    """Share of a step that would be won."""
    payback_s: float
    """Seconds until the loss is won back; infinite where nothing is won."""
    text: str


def advise(prospects: Prospects) -> Advised:
    """Say whether balancing pays, from measured times alone.

    The slowest rank's expert time scales with the imbalance; the rest of a step does not.

    >>> good = Prospects("", 1.5, 1.0, 0.02, step_s=0.04, expert_s=0.012, stall_s=0.4,
    ...     horizon_s=600.0)
    >>> found = advise(good)
    >>> found.advice.value, round(found.faster, 3), round(found.payback_s, 1)
    ('worth trying', 0.1, 4.0)
    """
    now, then = prospects.imbalance_now, prospects.imbalance_then
    if prospects.lack or not (isfinite(now) and isfinite(then)) or prospects.step_s <= 0:
        lack = prospects.lack or "no step time or no load was measured"
        return Advised(Advice.NOT_ENOUGH_EVIDENCE, 0.0, float("inf"), lack)
    won = max(0.0, 1.0 - then / now) * prospects.expert_s / prospects.step_s if now > 0 else 0.0
    payback_s = prospects.stall_s / won if won > 0 else float("inf")
    numbers = (
        f"imbalance {now:.3f} to {then:.3f} (noise {prospects.noise:.3f}) wins {won:.1%} of a step "
        f"of {prospects.step_s * 1e3:.1f} ms, of which experts take {prospects.expert_s * 1e3:.1f} "
        f"ms; {prospects.stall_s * 1e3:.0f} ms lost are won back in {payback_s:.1f} s"
    )
    pays = now - then > prospects.noise and payback_s <= prospects.horizon_s
    return Advised(Advice.WORTH_TRYING if pays else Advice.NOT_NOW, won, payback_s, numbers)
