"""Packing layers so that replicated experts join as many ranks as they can.

Experts with most replicas come first, since they join most. Each replica goes to a rank that is
not yet joined with the ones before it, of those to one with fewest replicas so far, of those to
the least loaded; the others follow heaviest first to the least loaded rank with room. All layers
are packed at once.

Axes    L layers   E logical experts   N ranks   P slots
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.ids import CountArray, FloatArray
from eplb_service.policies.lpt import fill, grant_replicas
from eplb_service.policies.replicas import IndexArray

NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class _Packing:
    """Layers in the making; changed in place."""

    room: IndexArray
    """[L, N] slots that each rank has left."""
    load: FloatArray
    """[L, N] in mean loads of a rank."""
    degree: IndexArray
    """[L, N] replicas, of experts with several, on each rank."""
    joined: IndexArray
    """[L, N] equal for ranks of one component."""
    held: NDArray[np.bool_]
    """[L, N, E] which rank holds which expert."""

    def cost(self, experts: IndexArray, weight: FloatArray, first: IndexArray) -> FloatArray:
        """[L, N] of giving each rank a replica; inf where it cannot take one.

        weight    [L] 1 for replicas that join, 0 for the only one of an expert
        first     [L] rank of the expert's first replica, NOBODY before it
        """
        at, num_ranks = np.arange(len(experts)), self.load.shape[1]
        component = np.where(first == NOBODY, NOBODY, self.joined[at, np.maximum(first, 0)])
        is_joined = self.joined == component[:, None]
        most = 1 + self.degree.max(initial=0)
        cost = weight[:, None] * (is_joined * most + self.degree) + self.load / (1 + num_ranks)
        can = (self.room > 0) & ~self.held[at, :, np.maximum(experts, 0)]
        return np.where(can & (experts != NOBODY)[:, None], cost, np.inf)


def join(heat: FloatArray, sizes: CountArray) -> list[list[list[int]]]:
    """Return the experts of every rank of every layer: its slots filled, none of them twice.

    heat     [L, E] tokens
    sizes    [L, N] slots of each rank; at least E in a layer, at most E on a rank
    """
    counts = np.array(
        [
            grant_replicas(own, num_slots=int(n.sum()), max_replicas=int((n > 0).sum()))
            for own, n in zip(heat.tolist(), sizes, strict=True)
        ],
        dtype=np.intp,
    ).reshape(heat.shape)
    state = _packed(heat, sizes, counts)
    layers: list[list[list[int]]] = []
    for held, tokens, own in zip(state.held, heat.tolist(), sizes.tolist(), strict=True):
        ranks: list[list[int]] = [np.flatnonzero(row).tolist() for row in held]
        fill(ranks, tokens, np.maximum(held.sum(axis=0), 1).tolist(), own)
        layers.append(ranks)
    return layers


def _packed(heat: FloatArray, sizes: CountArray, counts: IndexArray) -> _Packing:
    num_layers, num_ranks = len(heat), int(sizes.shape[1])
    at = np.arange(num_layers)
    mean = np.maximum(heat.sum(axis=1, keepdims=True) / num_ranks, np.finfo(float).tiny)
    portions = heat / mean / counts
    state = _Packing(
        room=sizes.astype(np.intp),
        load=np.zeros(sizes.shape),
        degree=np.zeros(sizes.shape, dtype=np.intp),
        joined=np.tile(np.arange(num_ranks), (num_layers, 1)),
        held=np.zeros((*sizes.shape, heat.shape[1]), dtype=np.bool_),
    )
    first = np.full(num_layers, NOBODY)
    before = np.full(num_layers, NOBODY)
    for experts in _turns(portions, counts).T:
        first = np.where(experts == before, first, NOBODY)
        weight = (counts[at, np.maximum(experts, 0)] > 1).astype(np.float64)
        cost = state.cost(experts, weight, first)
        ranks = cost.argmin(axis=1)
        can = np.isfinite(cost[at, ranks])
        _give(state, at[can], ranks[can], experts[can])
        state.load[at[can], ranks[can]] += portions[at[can], experts[can]]
        state.degree[at[can], ranks[can]] += weight[can] > 0
        _merge(state, can & (first != NOBODY), first, ranks)
        first = np.where((first == NOBODY) & can, ranks, first)
        before = experts
    return state


def _turns(portions: FloatArray, counts: IndexArray) -> IndexArray:
    """[L, P] the expert of each turn: most replicas first, of one count the heaviest."""
    num_turns = counts.sum(axis=1)
    turns = np.full((len(counts), int(num_turns.max(initial=0))), NOBODY)
    for layer, own in enumerate(counts):
        rank_of_count = np.where(own > 1, -own, 0)
        order = np.lexsort((np.arange(len(own)), -portions[layer], rank_of_count))
        turns[layer, : num_turns[layer]] = np.repeat(order, own[order])
    return turns


def _give(state: _Packing, layers: IndexArray, ranks: IndexArray, experts: IndexArray) -> None:
    state.room[layers, ranks] -= 1
    state.held[layers, ranks, experts] = True


def _merge(state: _Packing, joins: NDArray[np.bool_], first: IndexArray, ranks: IndexArray) -> None:
    """Let the components of two ranks of some layers become one."""
    layers = np.flatnonzero(joins)
    kept = state.joined[layers, first[layers]][:, None]
    gone = state.joined[layers, ranks[layers]][:, None]
    own = state.joined[layers]
    state.joined[layers] = np.where(own == gone, kept, own)
