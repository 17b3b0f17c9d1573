"""What one placement is worth on one window, and on the window after it.

Axes    L MoE layers   E logical experts   P slots   N ranks
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eplb_service.domain.heat import (
    even_slot_load,
    imbalance,
    mean_with_data,
    rank_load,
    worst_with_data,
)
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import violations
from eplb_service.domain.shares import Shares
from eplb_service.policies.replicas import num_components
from eplb_service.policies.shares import load_under, shares_by_source
from eplb_service.policies.split import SLACK, exact_split, split_imbalance

__all__ = ["Afterwards", "Balances", "Changes", "Judged", "judge", "look_again"]


@dataclass(frozen=True, slots=True)
class Balances:
    """Imbalance on the window that was planned for; means over layers, but the worst."""

    imbalance_even: float
    """Every expert divides evenly over its replicas."""
    imbalance_shares: float
    """The best split of this placement."""
    imbalance_maps: float
    """Whole sources, one replica per source rank and expert."""
    worst_even: float
    worst_shares: float
    worst_maps: float


@dataclass(frozen=True, slots=True)
class Afterwards:
    """Imbalance on the window after it, on the same placement."""

    next_even: float
    next_shares_stale: float
    """Shares of the window that was planned for."""
    next_shares_fresh: float
    """Shares of the next window itself: nothing has moved."""
    next_maps_stale: float
    next_maps_fresh: float


@dataclass(frozen=True, slots=True)
class Changes:
    """What the plan costs."""

    valid: bool
    moves: int
    """Pairs of rank and expert that were not held before, over all layers."""
    inter_node_moves: int
    """Of these, onto nodes where no rank held the expert."""
    max_incoming: float
    """Most that one rank takes in one layer; mean over layers."""
    components: float
    """Of the replica graph; mean over layers."""
    own_node: float
    """Share of the tokens that whole sources send to their own node."""
    split_ms: float
    """Time of the split that tables are drawn from, on one thread."""
    shares_ms: float
    """Time of the tables, that split included, on one thread."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A placement on its window, with the shares to look at again in the next."""

    balances: Balances
    changes: Changes
    split: FloatArray | None
    """[L, P] None where the placement is unsound."""
    shares: Shares | None


def judge(before: Placement, after: Placement, sources: FloatArray, nodes: Sequence[str]) -> Judged:
    """Judge a plan on the tokens [N, L, E] of the window that it was made for.

    A placement that breaks a rule is measured under an even split alone.
    """
    heat = sources.sum(axis=0)
    if violations(after):
        return _judge_unsound(before, after, heat, nodes)
    split = exact_split(heat, after)
    start = time.process_time()
    exact_split(heat, after, slack=SLACK)
    split_spent = 1000 * (time.process_time() - start)
    start = time.process_time()
    shares = shares_by_source(sources, after, nodes=nodes)
    spent = 1000 * (time.process_time() - start)
    even = imbalance(rank_load(even_slot_load(heat, after), after))
    best = split_imbalance(heat, after, split)
    whole = imbalance(load_under(shares, sources, after))
    three = (even, best, whole)
    balances = Balances(*map(mean_with_data, three), *map(worst_with_data, three))
    moves, crossing, incoming = _moves(before, after, nodes)
    changes = Changes(
        valid=True,
        moves=moves,
        inter_node_moves=crossing,
        max_incoming=incoming,
        components=float(num_components(after).mean()),
        own_node=_own_node(shares, sources, after, nodes),
        split_ms=split_spent,
        shares_ms=spent,
    )
    return Judged(balances, changes, split, shares)


def _judge_unsound(
    before: Placement, after: Placement, heat: FloatArray, nodes: Sequence[str]
) -> Judged:
    even = imbalance(rank_load(even_slot_load(heat, after), after))
    worst = worst_with_data(even)
    none = float("nan")
    moves, crossing, incoming = _moves(before, after, nodes)
    return Judged(
        Balances(mean_with_data(even), none, none, worst, none, none),
        Changes(
            valid=False,
            moves=moves,
            inter_node_moves=crossing,
            max_incoming=incoming,
            components=none,
            own_node=none,
            split_ms=none,
            shares_ms=none,
        ),
        None,
        None,
    )


def look_again(
    placement: Placement, judged: Judged, sources: FloatArray, nodes: Sequence[str]
) -> Afterwards:
    """Judge the same placement on the tokens [N, L, E] of the window after."""
    heat = sources.sum(axis=0)
    if judged.split is None or judged.shares is None:
        even = imbalance(rank_load(even_slot_load(heat, placement), placement))
        none = float("nan")
        return Afterwards(mean_with_data(even), none, none, none, none)
    fresh = shares_by_source(sources, placement, nodes=nodes)
    measured = (
        imbalance(rank_load(even_slot_load(heat, placement), placement)),
        split_imbalance(heat, placement, judged.split),
        split_imbalance(heat, placement, exact_split(heat, placement)),
        imbalance(load_under(judged.shares, sources, placement)),
        imbalance(load_under(fresh, sources, placement)),
    )
    return Afterwards(*map(mean_with_data, measured))


def _held(placement: Placement) -> npt.NDArray[np.bool_]:
    """[L, N, E] whether a rank holds an expert."""
    layout = placement.layout
    held = np.zeros((placement.num_layers, layout.num_ranks, placement.num_experts), dtype=np.bool_)
    layers, slots = np.nonzero(placement.routed())
    held[layers, layout.rank_of_slot()[slots], placement.phy2log[layers, slots]] = True
    return held


def _moves(before: Placement, after: Placement, nodes: Sequence[str]) -> tuple[int, int, float]:
    old, new = _held(before), _held(after)
    gained = new & ~old
    numbers = _numbers(nodes)
    on_node = np.stack([old[:, numbers == n].any(axis=1) for n in range(numbers.max() + 1)], axis=1)
    crossing = gained & ~on_node[:, numbers]
    incoming = gained.sum(axis=2).max(axis=1).mean()
    return int(gained.sum()), int(crossing.sum()), float(incoming)


def _numbers(nodes: Sequence[str]) -> npt.NDArray[np.intp]:
    """[N] number of each rank's node."""
    known = {node: number for number, node in enumerate(sorted(set(nodes)))}
    return np.array([known[node] for node in nodes], dtype=np.intp)


def _own_node(
    shares: Shares, sources: FloatArray, placement: Placement, nodes: Sequence[str]
) -> float:
    numbers = _numbers(nodes)
    node_of_slot = numbers[placement.layout.rank_of_slot()]
    kept = sum(
        float((tokens * (node_of_slot[shares.table_of(rank)[:, :, 0]] == numbers[rank])).sum())
        for rank, tokens in enumerate(sources)
    )
    return kept / max(float(sources.sum()), 1.0)
