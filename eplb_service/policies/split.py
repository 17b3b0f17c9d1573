"""The best split of each expert's tokens over its replicas, while no weight moves.

Of all splits, the one with the least sum of squared rank loads has the lowest peak too: it is
as level as the replica graph allows. That convex problem is solved for all layers at once by a
primal-dual interior-point method (Wright, Primal-Dual Interior-Point Methods, SIAM 1997). Its
Newton step is one N x N system for each layer, so long chains of replicas, along which
expert-by-expert levelling creeps, cost no more steps than short ones.

Axes    L MoE layers   E logical experts   P slots   N ranks   B, M as in replicas
"""

from dataclasses import dataclass

import numpy as np

from eplb_service.domain.heat import imbalance, rank_load
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.policies.replicas import (
    IndexArray,
    Replicas,
    replicas_of,
    require_heat,
    summed,
)

ACCURACY = 1e-10
"""Duality gap at which a layer is solved, for loads scaled to a mean of 1 per rank."""
MAX_STEPS = 60
FIRST_PRICE = 0.1
"""Of every share at the start: the price that keeps it from 0."""
TO_THE_WALL = 0.98
"""Of the way to the first share or price that would become 0."""


def exact_split(heat: FloatArray, placement: Placement) -> FloatArray:
    """[L, P] the share of its expert's tokens that each slot takes at the lowest peak.

    heat    [L, E] tokens. Shares of an expert sum to 1; where it has no tokens they are
    even; shared and empty slots have 0. Raises InvalidTable for heat that is no heat.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> p = placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3)
    >>> exact_split(np.array([[60.0, 30.0, 10.0]]), p).round(3).tolist()
    [[0.333, 1.0, 0.667, 1.0]]
    """
    require_heat(heat, placement)
    replicas = replicas_of(placement)
    counts = replicas.counts()[replicas.groups]
    shares = placement.routed().astype(np.float64)
    shares[replicas.layers, replicas.slots] = 1.0 / counts
    if not replicas.starts.size:
        return shares
    scaled = _scaled(heat, placement.layout.num_ranks)
    wanted = scaled[replicas.layers[replicas.starts], replicas.experts[replicas.starts]]
    singles = _single_load(scaled, placement, replicas)
    tokens = _level(_Problem(replicas, singles, wanted))
    busy = wanted[replicas.groups] > 0
    at = replicas.layers[busy], replicas.slots[busy]
    shares[at] = tokens[busy] / replicas.total(tokens)[replicas.groups][busy]
    return shares


def split_imbalance(heat: FloatArray, placement: Placement, shares: FloatArray) -> FloatArray:
    """[L] peak over mean of the ranks under shares [L, P]; NaN where there is no load."""
    held = np.where(placement.routed(), placement.phy2log, 0).astype(np.intp)
    tokens = np.take_along_axis(heat, held, axis=1) * shares
    return imbalance(rank_load(tokens, placement))


def _scaled(heat: FloatArray, num_ranks: int) -> FloatArray:
    """[L, E] heat in units of the mean load of a rank; counts of any size stay finite."""
    unit = heat / np.maximum(heat.max(axis=1, keepdims=True, initial=0.0), np.finfo(float).tiny)
    return unit * num_ranks / np.maximum(unit.sum(axis=1, keepdims=True), 1.0)


def _single_load(heat: FloatArray, placement: Placement, replicas: Replicas) -> FloatArray:
    """[L, N] load of the experts that have one replica."""
    held = np.where(placement.routed(), placement.phy2log, 0).astype(np.intp)
    tokens = np.take_along_axis(heat, held, axis=1)
    tokens[replicas.layers, replicas.slots] = 0.0
    return rank_load(tokens, placement)


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Tokens of replicated experts to be laid over what the ranks have anyway."""

    replicas: Replicas
    singles: FloatArray
    """[L, N]"""
    wanted: FloatArray
    """[B] tokens of each replicated expert."""

    @property
    def cells(self) -> IndexArray:
        """[M] place of each replica's rank in the flat loads [L * N]."""
        return self.replicas.layers * self.singles.shape[1] + self.replicas.ranks

    def load(self, tokens: FloatArray) -> FloatArray:
        """[L, N] load of the ranks from tokens [M]; without the singles."""
        return summed(self.cells, tokens, self.singles.size).reshape(self.singles.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Every ordered pair of replicas of one expert: where the Newton matrix is not zero."""

    first: IndexArray
    second: IndexArray
    cells: IndexArray
    """Place in the flat matrices [L * N * N]."""


def _pairs(problem: _Problem) -> _Pairs:
    replicas, num_ranks = problem.replicas, problem.singles.shape[1]
    counts = replicas.counts()[replicas.groups]
    first = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    second = replicas.starts[replicas.groups][first] + nth
    cells = problem.cells[first] * num_ranks + replicas.ranks[second]
    return _Pairs(first, second, cells)


def _level(problem: _Problem) -> FloatArray:
    """[M] tokens of each replica at the least sum of squared loads.

    `tokens` and `prices` stay positive and their products shrink together; prices are what
    a rank's load is above the level of the expert, so they need no step of their own.
    """
    replicas, pairs = problem.replicas, _pairs(problem)
    busy = problem.wanted[replicas.groups] > 0
    tokens = (problem.wanted / replicas.counts())[replicas.groups]
    tokens = np.where(busy, tokens, 1.0)
    load = (problem.singles + problem.load(np.where(busy, tokens, 0.0))).ravel()[problem.cells]
    prices = load - np.minimum.reduceat(load, replicas.starts)[replicas.groups] + FIRST_PRICE
    in_layer = np.maximum(
        summed(replicas.layers, busy.astype(np.float64), len(problem.singles)), 1.0
    )
    width = np.full(len(problem.singles), 0.5)
    for _ in range(MAX_STEPS):
        gap = summed(replicas.layers, np.where(busy, tokens * prices, 0.0), len(in_layer))
        is_open = gap > ACCURACY
        if not is_open.any():
            break
        aim = (np.clip((1 - width) ** 2, 0.03, 0.5) * gap / in_layer)[replicas.layers]
        moving = busy & is_open[replicas.layers]
        step, price_step = _newton(problem, pairs, (tokens, prices, aim), moving)
        width = _width(replicas.layers, (tokens, prices), (step, price_step), len(in_layer))
        tokens = tokens + width[replicas.layers] * step
        prices = prices + width[replicas.layers] * price_step
    return np.where(busy, tokens, 0.0)


def _newton(
    problem: _Problem,
    pairs: _Pairs,
    state: tuple[FloatArray, FloatArray, FloatArray],
    moving: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> tuple[FloatArray, FloatArray]:
    """Step [M] of tokens and of prices towards products of `aim`; 0 for what must not move."""
    tokens, prices, aim = state
    replicas, (num_layers, num_ranks) = problem.replicas, problem.singles.shape
    give = np.where(moving, tokens / prices, 0.0)
    per_expert = np.maximum(replicas.total(give), np.finfo(float).tiny)
    portion = give / per_expert[replicas.groups]
    matrix = summed(
        pairs.cells, -give[pairs.first] * portion[pairs.second], num_layers * num_ranks**2
    ).reshape(num_layers, num_ranks, num_ranks)
    matrix += (1.0 + problem.load(give))[:, :, None] * np.eye(num_ranks)

    def within(values: FloatArray) -> FloatArray:
        """What the values ask for, less what is the same for all replicas of an expert."""
        return give * (values - replicas.total(portion * values)[replicas.groups])

    pull = aim / tokens - prices
    shift = np.linalg.solve(matrix, problem.load(within(pull))[..., None])[..., 0]
    step = within(pull - shift.ravel()[problem.cells])
    return step, np.where(moving, pull - prices / tokens * step, 0.0)


def _width(
    layers: IndexArray,
    values: tuple[FloatArray, FloatArray],
    steps: tuple[FloatArray, FloatArray],
    num_layers: int,
) -> FloatArray:
    """[L] how far each layer may step, 1 for all the way, while all values stay positive."""
    width = np.ones(num_layers)
    for value, step in zip(values, steps, strict=True):
        shrinks = step < 0
        np.minimum.at(width, layers[shrinks], TO_THE_WALL * value[shrinks] / -step[shrinks])
    return width
