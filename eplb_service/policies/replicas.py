"""Experts with several replicas as a graph over the ranks: what shares can level, and what not.

A rank is a node, a replicated expert an edge that joins all ranks that hold it. Shares carry
load along edges only, so a component of that graph keeps the load it has: P - E >= N - 1
spare slots are needed for one component.

Axes    L MoE layers   E logical experts   P slots   N ranks   B replicated experts of all layers
        M their replicas, sorted by layer, expert and slot
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Replicas:
    """Every replica whose expert has another one in its layer."""

    layers: IndexArray
    """[M] layer of each replica."""
    experts: IndexArray
    """[M] its expert."""
    slots: IndexArray
    """[M] its slot."""
    ranks: IndexArray
    """[M] the rank of that slot."""
    groups: IndexArray
    """[M] number of its expert among the B, from 0."""
    starts: IndexArray
    """[B] first replica of each."""

    def total(self, values: FloatArray) -> FloatArray:
        """[B] sums over the replicas of each expert of values [M]."""
        return summed(self.groups, values, len(self.starts))

    def counts(self) -> IndexArray:
        """[B] replicas of each expert."""
        return np.bincount(self.groups, minlength=len(self.starts))


def summed(index: IndexArray, values: FloatArray, size: int) -> FloatArray:
    """[size] the values [M] summed by index [M]."""
    return np.bincount(index, weights=values, minlength=size).astype(np.float64, copy=False)


def replicas_of(placement: Placement) -> Replicas:
    """List the replicas of every routed expert that has two or more."""
    layers, slots = np.nonzero(placement.routed())
    experts = placement.phy2log[layers, slots].astype(np.intp)
    keep = placement.replica_count()[layers, experts] > 1
    layers, slots, experts = layers[keep], slots[keep], experts[keep]
    order = np.lexsort((slots, experts, layers))
    layers, slots, experts = layers[order], slots[order], experts[order]
    key = layers * placement.num_experts + experts
    is_first = np.concatenate(([True], key[1:] != key[:-1]))[: len(key)]
    return Replicas(
        layers=layers,
        experts=experts,
        slots=slots,
        ranks=placement.layout.rank_of_slot().astype(np.intp)[slots],
        groups=np.cumsum(is_first, dtype=np.intp) - 1,
        starts=np.flatnonzero(is_first),
    )


def components(placement: Placement) -> IndexArray:
    """[L, N] for each rank the lowest rank that it is joined with by replicated experts.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> p = placement_from_ranks([[[0, 1], [1, 2], [3], [0]]], num_experts=4)
    >>> components(p).tolist()
    [[0, 0, 2, 0]]
    """
    num_ranks, replicas = placement.layout.num_ranks, replicas_of(placement)
    joined = np.tile(np.arange(num_ranks), (placement.num_layers, 1))
    while replicas.starts.size:
        lowest = np.minimum.reduceat(joined[replicas.layers, replicas.ranks], replicas.starts)
        after = joined.copy()
        np.minimum.at(after, (replicas.layers, replicas.ranks), lowest[replicas.groups])
        after = np.take_along_axis(after, after, axis=1)
        if (after == joined).all():
            break
        joined = after
    return joined


def num_components(placement: Placement) -> IndexArray:
    """[L] components of each layer's graph; 1 where shares can level all ranks."""
    return (components(placement) == np.arange(placement.layout.num_ranks)).sum(axis=1)


def require_heat(heat: FloatArray, placement: Placement) -> None:
    """Raise InvalidTable unless heat is finite, not negative and shaped as the placement."""
    want = (placement.num_layers, placement.num_experts)
    if heat.shape != want:
        raise InvalidTable(f"heat has shape {list(heat.shape)}; expected {list(want)}")
    bad = ~np.isfinite(heat) | (heat < 0)
    if bad.any():
        layer, expert = np.argwhere(bad)[0].tolist()
        raise InvalidTable(
            f"layer {layer} expert {expert} has heat {heat[layer, expert]}; expected a finite "
            "number of tokens, 0 or more; nothing is drawn"
        )
