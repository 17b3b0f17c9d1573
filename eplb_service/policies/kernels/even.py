"""The compiled loops of even.c, with types: layers whose shares are given.

Axes    E logical experts   N ranks   M moves   K sets of experts that a rank may hold
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.kernels.library import Numbers, call

__all__ = ["Numbers", "Options", "Rule", "tried_all"]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What each replica costs its rank."""

    split: FloatArray
    """[N + 1, N] row c: the share of each of c replicas in the order of their ranks."""
    slowness: FloatArray
    """[N] what a token costs each rank, 1 on one of mean speed."""
    turn: int
    """As in Terms."""
    fixed: float
    """As in Terms."""


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """What one rank may hold."""

    sets: Numbers
    """[K] sets of experts, bit e for expert e."""
    moves: Numbers
    """[K] experts of each that the rank does not hold yet."""


def tried_all(
    heat: FloatArray, rule: Rule, options: Sequence[Options], *, wanted: int, most: int
) -> tuple[FloatArray, Numbers]:
    """[M + 1] the lowest peak that up to so many moves reach, and [M + 1, N] sets that do.

    heat       [E] at most 62 experts
    options    [N]
    wanted     experts that have to be held, as bits
    most       M
    """
    num_ranks, num_experts = len(options), len(heat)
    peaks = np.full(most + 1, np.inf)
    rows = np.zeros((most + 1, num_ranks), np.int64)
    call(
        "eplb_try_all",
        (num_ranks, num_experts, most, rule.turn, wanted),
        (
            np.ascontiguousarray(heat),
            np.ascontiguousarray(rule.split),
            np.ascontiguousarray(rule.slowness),
            np.array([rule.fixed]),
            np.concatenate([of.sets for of in options]),
            np.concatenate([of.moves for of in options]),
            np.cumsum([0, *(len(of.sets) for of in options)], dtype=np.int64),
            rows,
            peaks,
            np.empty(num_ranks + num_experts, np.int64),
            np.empty(num_experts * (num_ranks + 1)),
        ),
    )
    return peaks, rows
