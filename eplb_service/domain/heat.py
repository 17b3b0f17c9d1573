"""Heat: how many tokens each logical expert got, and how even the ranks' load is.

Axes    L MoE layers   E logical experts   N ranks   P slots
"""

from dataclasses import dataclass

import numpy as np

from eplb_service.domain.ids import CountArray, FloatArray, IntArray, frozen
from eplb_service.domain.placement import Placement
from eplb_service.domain.report import Phase


@dataclass(frozen=True, slots=True, eq=False)
class BySource:
    """Which rank sent how many tokens to the experts that have a choice of replicas.

    X counts those alone: an expert with one replica gets its tokens there whoever sends them.
    """

    layers: IntArray
    """[X]"""
    experts: IntArray
    """[X]"""
    tokens: CountArray
    """[N, X]"""
    routed: CountArray
    """[N] tokens that each rank routed at all."""
    num_steps: int
    """Steps that the counts enclose."""

    def __post_init__(self) -> None:
        for array in (self.layers, self.experts, self.tokens, self.routed):
            frozen(array)

    def spread(self, heat: FloatArray, layers: range) -> FloatArray:
        """[N, len(layers), E] heat [L, E] of some layers, by the rank that sends it.

        An expert whose sources were not counted is taken to be sent for as ranks route at all.

        >>> one = BySource(*(np.array([0], dtype=np.int32),) * 2, np.array([[3], [1]]),
        ...     routed=np.array([1, 1]), num_steps=10)
        >>> one.spread(np.array([[8.0, 2.0]]), range(1)).tolist()
        [[[6.0, 1.0]], [[2.0, 1.0]]]
        """
        num_ranks = len(self.routed)
        total = self.routed.sum()
        part = self.routed / total if total else np.full(num_ranks, 1.0 / num_ranks)
        spread = part[:, None, None] * heat[None, layers.start : layers.stop]
        sent = self.tokens.sum(axis=0)
        known = (sent > 0) & (self.layers >= layers.start) & (self.layers < layers.stop)
        at, experts = self.layers[known], self.experts[known]
        share = self.tokens[:, known] / sent[known]
        spread[:, at - layers.start, experts] = share * heat[at, experts]
        return spread


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """Tokens per logical expert, with what the figure rests on."""

    tokens: FloatArray
    """[L, E] tokens each routed expert got in the window."""
    phase: Phase | None
    """None where all phases are taken together."""
    num_steps: int
    """Steps that the window encloses."""
    coverage: float
    """Share of ranks that reported, 0 to 1."""
    by_source: BySource | None = None
    """Who sent them; None where not known."""

    def __post_init__(self) -> None:
        frozen(self.tokens)


def fold_slots(slot_tokens: CountArray, placement: Placement) -> CountArray:
    """Sum the replicas of every routed expert; empty and shared slots do not count.

    slot_tokens    [L, P]
    returns        [L, E]

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> p = placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3)
    >>> fold_slots(np.array([[30, 10, 50, 10]]), p).tolist()
    [[80, 10, 10]]
    """
    shape = (placement.num_layers, placement.num_experts)
    heat = np.zeros(shape[0] * shape[1], dtype=np.int64)
    is_routed = placement.routed()
    # A flat index: numpy sums that several times faster than pairs of indices.
    cells = placement.phy2log + np.arange(shape[0])[:, None] * shape[1]
    np.add.at(heat, cells[is_routed], slot_tokens[is_routed])
    return heat.reshape(shape)


def rank_load(slot_tokens: CountArray | FloatArray, placement: Placement) -> FloatArray:
    """[L, N] tokens per rank from tokens per slot [L, P]; routed experts only."""
    routed = np.where(placement.routed(), slot_tokens, 0).astype(np.float64)
    layout = placement.layout
    return np.stack(
        [routed[:, layout.slots_of(rank)].sum(axis=1) for rank in range(layout.num_ranks)], axis=1
    )


def even_slot_load(heat: FloatArray, placement: Placement) -> FloatArray:
    """[L, P] tokens per slot if every expert's tokens split evenly over its replicas."""
    share = heat / np.maximum(placement.replica_count(), 1)
    layers = np.arange(placement.num_layers)[:, None]
    held = np.where(placement.routed(), placement.phy2log, 0)
    return np.where(placement.routed(), share[layers, held], 0.0)


def imbalance(load: FloatArray) -> FloatArray:
    """[L] peak over mean of the ranks' load; 1.0 is perfect, NaN where there is no load.

    load    [L, N]

    >>> imbalance(np.array([[30.0, 10.0], [10.0, 30.0], [0.0, 0.0]])).tolist()
    [1.5, 1.5, nan]
    """
    mean = load.mean(axis=1)
    out = np.full(len(load), np.nan)
    return np.divide(load.max(axis=1), mean, out=out, where=mean > 0)


def imbalance_where_held(
    load: FloatArray, placement: Placement, speed: FloatArray | None = None
) -> FloatArray:
    """[L] peak over mean of the ranks that hold routed experts; NaN where there is no load.

    load     [L, N]
    speed    [N] load that each rank bears in one time; None: alike. It is times that are compared
             then, and the mean is the time in which these ranks could bear all together.

    A rank that is drained, or has no slots, computes nothing and could not help.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> p = placement_from_ranks([[[0, 1], [-1, -1], [2, 0]]], num_experts=3)
    >>> imbalance_where_held(np.array([[30.0, 0.0, 10.0]]), p).tolist()
    [1.5]
    """
    holds = rank_load(np.ones(placement.phy2log.shape), placement) > 0
    known = np.ones(placement.layout.num_ranks) if speed is None else speed
    joint = np.where(holds, known, 0.0).sum(axis=1)
    mean = load.sum(axis=1) / np.where(joint > 0, joint, 1.0)
    out = np.full(len(load), np.nan)
    return np.divide((load / known).max(axis=1), mean, out=out, where=mean > 0)


def mean_with_data(values: FloatArray) -> float:
    """Mean over the layers that have data; NaN where none has.

    >>> mean_with_data(np.array([np.nan, 1.5, 1.3]))
    1.4
    """
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else float("nan")


def worst_with_data(values: FloatArray) -> float:
    """Highest of the layers that have data; NaN where none has.

    >>> worst_with_data(np.array([np.nan, 1.5, 1.3]))
    1.5
    """
    present = values[~np.isnan(values)]
    return float(present.max()) if present.size else float("nan")
