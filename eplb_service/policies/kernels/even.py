"""The compiled loops of even.c, with types: layers whose shares are given.

Axes    E logical experts   N ranks   M moves   K sets of experts that a rank may hold
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.kernels.library import Numbers, call

__all__ = [
    "Numbers",
    "Options",
    "Ranks",
    "Rule",
    "descended",
    "recounted",
    "taken_back",
    "tried_all",
]

Ranks = Sequence[Sequence[int]]
"""Experts of each rank."""
UNLIMITED = -1


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


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A layer as it is."""

    heat: FloatArray
    """[E] tokens."""
    rule: Rule
    ranks: Ranks
    """No expert twice on a rank."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What a descent aims at, and how far it may go."""

    enough: float
    """Peak at which it stops."""
    spread_weight: float
    """What the root mean square of all loads counts beside the peak."""
    max_moves: int | None
    """None where moves cost nothing."""
    most_steps: int


def tried_all(
    layer: Layer, options: Sequence[Options], *, wanted: int, most: int
) -> tuple[FloatArray, Numbers]:
    """[M + 1] the lowest peak that up to so many moves reach, and [M + 1, N] sets that do.

    layer      of at most 62 experts
    options    [N]
    wanted     experts that have to be held, as bits
    most       M
    """
    num_ranks, num_experts, rule = len(options), len(layer.heat), layer.rule
    peaks = np.full(most + 1, np.inf)
    rows = np.zeros((most + 1, num_ranks), np.int64)
    call(
        "eplb_try_all",
        (num_ranks, num_experts, most, rule.turn, wanted),
        (
            np.ascontiguousarray(layer.heat),
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


def descended(layer: Layer, origin: Ranks, aim: Aim) -> list[list[int]]:
    """Experts of each rank at the lowest peak on the way of steepest descent.

    origin    what moves are counted from, as many experts on each rank
    """
    most = UNLIMITED if aim.max_moves is None else aim.max_moves
    limits, numbers = (most, aim.most_steps), (aim.spread_weight, aim.enough)
    return _changed("eplb_descend", layer, origin, limits, numbers)


def recounted(layer: Layer, *, highest: float, most_moves: int) -> list[list[int]]:
    """Experts of each rank after replicas for those hotter than `highest`, one move each."""
    return _changed("eplb_recount", layer, layer.ranks, (most_moves, 0), (0.0, highest))


def taken_back(
    layer: Layer, origin: Ranks, *, limit: float, highest: float, most_pairs: int
) -> list[list[int]]:
    """Experts of each rank without the changes since the origin that no peak needs."""
    numbers, limits = (0.0, limit, highest), (0, most_pairs)
    return _changed("eplb_take_back", layer, origin, limits, numbers)


def _changed(
    name: str, layer: Layer, origin: Ranks, limits: tuple[int, int], numbers: tuple[float, ...]
) -> list[list[int]]:
    num_ranks, num_experts, rule = len(layer.ranks), len(layer.heat), layer.rule
    row, begin = _flat(layer.ranks)
    num_slots = len(row)
    call(
        name,
        (num_ranks, num_experts, num_slots, rule.turn, *limits),
        (
            np.ascontiguousarray(layer.heat),
            np.ascontiguousarray(rule.split),
            np.ascontiguousarray(rule.slowness),
            np.array((rule.fixed, *numbers)),
            begin,
            row,
            _flat(origin)[0],
            np.empty(num_experts * (num_ranks + 4) + 4 * num_ranks + 3 * num_slots, np.int64),
            np.empty(5 * num_ranks + 2 * (num_slots + num_experts)),
            np.empty(3 * num_slots, np.int64),
        ),
    )
    held, ends = row.tolist(), begin.tolist()
    return [held[first:last] for first, last in pairwise(ends)]


def _flat(ranks: Ranks) -> tuple[Numbers, Numbers]:
    """[P] experts rank by rank, and [N + 1] where each rank begins."""
    begin = np.cumsum([0, *map(len, ranks)], dtype=np.int64)
    return np.array([expert for held in ranks for expert in held], np.int64), begin
