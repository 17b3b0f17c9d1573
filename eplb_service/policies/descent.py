"""Steepest descent of one layer's peak: more replicas for what is hot, swaps with what is cold.

Three kinds of change are looked at, all for the most loaded rank: another rank takes
one of its experts in the place of one that has other replicas (one move); it gives up
such a replica itself for another expert (one move); it swaps two experts with another
rank (two moves). All are measured (kernels/even.c). Of those that lower this rank the most per
move, the one that is best for all ranks is made: their peak counts, and a little their spread.
Ties go to the first in order of slot and rank.
"""

from dataclasses import dataclass

from eplb_service.policies.balance import Balance
from eplb_service.policies.kernels.even import Aim, descended

SPREAD_WEIGHT = 0.1
"""How much the spread of all ranks counts beside the peak: what is level drifts apart later."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a descent may go."""

    max_moves: int | None = None
    """Experts that ranks may hold and did not before; None for no limit, and moves cost nothing."""
    enough: float = 0.0
    """Peak at which to stop."""
    most_steps: int = 200


def descend(start: Balance, effort: Effort, *, since: Balance | None = None) -> Balance:
    """Change slots until nothing wins, the peak is low enough or the moves are spent.

    Moves count since the start, or since another state where one is named. Returns the state
    with the lowest peak that was passed, so never a worse one.
    """
    aim = Aim(effort.enough, SPREAD_WEIGHT, effort.max_moves, effort.most_steps)
    ranks = descended(start.layer, (start if since is None else since).ranks, aim)
    return start.holding(ranks)


def num_changed(before: Balance, after: Balance) -> int:
    """Experts that ranks hold after and did not hold before."""
    pairs = zip(before.ranks, after.ranks, strict=True)
    return sum(len(set(now) - set(then)) for then, now in pairs)
