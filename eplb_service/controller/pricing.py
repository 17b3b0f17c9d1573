"""What a plan wins and what it loses, in time. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured times, to price a plan by."""

    step_s: float
    expert_s: float
    """Expert computation in a step on the slowest rank, all layers."""
    stall_s: float
    """Time that serving is expected to lose to the whole plan."""


def payback_steps(timing: Timing, *, before: float, after: float) -> float:
    """Steps until the time won equals the time lost; infinite where nothing is won.

    >>> round(payback_steps(Timing(0.040, 0.012, 0.9), before=1.40, after=1.05))
    300
    """
    if not before > 0 or not after < before:
        return float("inf")
    won_s = won_seconds(timing, before=before, after=after)
    if won_s <= 0:
        return 0.0 if timing.stall_s <= 0 else float("inf")
    return timing.stall_s / won_s


def won_seconds(timing: Timing, *, before: float, after: float) -> float:
    """Time that a step wins; 0 where nothing is won.

    The slowest rank's expert time scales with the imbalance.

    >>> round(won_seconds(Timing(0.040, 0.012, 0.9), before=1.40, after=1.05), 6)
    0.003
    """
    if not before > 0 or not after < before:
        return 0.0
    return timing.expert_s * (1.0 - after / before)
