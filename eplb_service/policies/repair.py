"""Few moves where shares alone no longer level a layer.

The best split leaves a set of ranks at the peak, out of which shares carry nothing more. Load
leaves that set in two ways: another rank takes a replica of one of its experts in the place of
a replica that is not the last (one move), or a rank of the set swaps an expert of one replica
with a colder one (two moves). The most promising of either are tried, each with the split
that would follow, all layers at once; a change that breaks the replica graph apart counts as
so much worse.

Axes    L layers   E logical experts   P slots   N ranks   C candidates
"""

from dataclasses import dataclass

import numpy as np

from eplb_service.domain.heat import imbalance, rank_load
from eplb_service.domain.ids import FloatArray, IntArray
from eplb_service.domain.placement import Placement
from eplb_service.policies.replicas import num_components
from eplb_service.policies.split import exact_split

LEVEL = 1e-3
"""Of the mean load: ranks this near to the peak are at the peak."""
NUM_OF_EACH = 8
"""Copies, and swaps, that are tried of one layer in one round."""
NUM_COLD_RANKS = 6
NUM_HOT_EXPERTS = 6
MAX_ROUNDS = 24
BREAKING = 0.02
"""Imbalance that one more component of the replica graph counts as."""
LEAST_GAIN = 2e-4
"""Of imbalance, for each move."""

Change = tuple[tuple[int, int], ...]
"""Slots, each with the expert that it gets; one move each."""


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Rows of slots under the best split."""

    placement: Placement
    """L layers."""
    heat: FloatArray
    """[L, E]"""
    tokens: FloatArray
    """[L, P] of each slot."""
    load: FloatArray
    """[L, N]"""
    badness: FloatArray
    """[L] imbalance, and what the parts of the graph count as."""

    @property
    def imbalance(self) -> FloatArray:
        """[L] peak over mean; 0 without load."""
        return np.nan_to_num(imbalance(self.load))


def look(heat: FloatArray, placement: Placement) -> Layers:
    """Solve the best split of every layer."""
    held = np.where(placement.routed(), placement.phy2log, 0).astype(np.intp)
    tokens = np.take_along_axis(heat, held, axis=1) * exact_split(heat, placement)
    load = rank_load(tokens, placement)
    parts = BREAKING * (num_components(placement) - 1)
    return Layers(placement, heat, tokens, load, np.nan_to_num(imbalance(load)) + parts)


def repair(start: Layers, *, enough: float, max_moves: int) -> Layers:
    """Change slots until every layer's imbalance is `enough`, nothing wins or moves are spent.

    Layers with most tokens above the mean spend first.
    """
    rows, layers = start.placement.phy2log.copy(), start
    is_open = layers.imbalance > enough
    for _ in range(MAX_ROUNDS):
        excess = (layers.imbalance - 1) * layers.load.mean(axis=1)
        order = sorted(np.flatnonzero(is_open).tolist(), key=lambda n: (-excess[n], n))
        if not order or max_moves < 1:
            break
        found = _best_changes(layers, order, enough)
        for layer in order:
            change = found.get(layer, ())
            is_open[layer] = bool(change) and len(change) <= max_moves
            if is_open[layer]:
                max_moves -= len(change)
                rows[layer] = _changed(rows[layer], change)
        layers = look(start.heat, _with_rows(start.placement, rows.copy()))
        is_open &= layers.imbalance > enough
    return layers


def _best_changes(layers: Layers, order: list[int], enough: float) -> dict[int, Change]:
    """For each layer the change that wins most per move, of those tried."""
    tried = [(layer, change) for layer in order for change in _candidates(layers, layer)]
    if not tried:
        return {}
    at = np.array([layer for layer, _ in tried])
    rows = np.stack([_changed(layers.placement.phy2log[n], change) for n, change in tried])
    after = look(layers.heat[at], _with_rows(layers.placement, rows))
    moves = np.array([len(change) for _, change in tried])
    broken = after.badness - after.imbalance - (layers.badness - layers.imbalance)[at]
    reached = np.maximum(after.imbalance, enough) + 1e-3 * after.imbalance + broken
    gain = ((1 + 1e-3) * layers.imbalance[at] - reached) / moves
    best: dict[int, int] = {}
    for nth, layer in enumerate(at.tolist()):
        if gain[nth] > LEAST_GAIN and gain[nth] > gain[best.get(layer, nth)] - (layer not in best):
            best[layer] = nth
    return {layer: tried[nth][1] for layer, nth in best.items()}


def _candidates(layers: Layers, layer: int) -> list[Change]:
    load, mean = layers.load[layer], float(layers.load[layer].mean())
    is_hot = load >= load.max() - LEVEL * mean
    cold: list[int] = np.argsort(load, kind="stable").tolist()
    cold = [rank for rank in cold if not is_hot[rank]][:NUM_COLD_RANKS]
    if not cold:
        return []
    view = _View(layers, layer, is_hot[layers.placement.layout.rank_of_slot()])
    return _copies(view, cold) + _swaps(view, cold)


class _View:
    """One layer as its candidates see it."""

    def __init__(
        self, layers: Layers, layer: int, is_hot: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> None:
        placement = layers.placement
        self.row, self.is_hot = placement.phy2log[layer], is_hot
        self.tokens, self.load = layers.tokens[layer], layers.load[layer]
        self.ranks = placement.layout.rank_of_slot()
        held = np.where(placement.routed()[layer], self.row, 0)
        self.heat = np.where(placement.routed()[layer], layers.heat[layer][held], 0.0)
        copies = np.bincount(held, placement.routed()[layer], layers.heat.shape[1])[held]
        self.counts = np.where(placement.routed()[layer], copies, 0)


def _copies(view: _View, cold: list[int]) -> list[Change]:
    """A cold rank takes an expert of the hot ranks in the place of one of its replicas."""
    hot = np.flatnonzero(view.is_hot & (view.tokens > 0))
    hot = hot[np.argsort(-view.heat[hot], kind="stable")]
    experts: list[int] = list(dict.fromkeys(view.row[hot].tolist()))[:NUM_HOT_EXPERTS]
    heat = dict(zip(view.row[hot].tolist(), view.heat[hot].tolist(), strict=True))
    excess = float((view.load.max() - view.load.mean()) * len(set(view.ranks[view.is_hot])))
    found: list[tuple[float, Change]] = []
    for rank in cold:
        own = np.flatnonzero(view.ranks == rank)
        spare = own[view.counts[own] > 1]
        for slot in spare[np.argsort(view.tokens[spare], kind="stable")][:2].tolist():
            for expert in [e for e in experts if e not in view.row[own]]:
                worth = min(heat[expert], excess) - float(view.tokens[slot])
                found.append((-worth, ((slot, expert),)))
    return [change for _, change in sorted(found)[:NUM_OF_EACH]]


def _swaps(view: _View, cold: list[int]) -> list[Change]:
    """A hot rank swaps an expert of one replica with a colder one of a cold rank."""
    hot = np.flatnonzero(view.is_hot & (view.counts == 1))
    num_hot = len(set(view.ranks[view.is_hot].tolist()))
    found: list[tuple[float, Change]] = []
    for rank in cold:
        there = np.flatnonzero((view.ranks == rank) & (view.counts == 1))
        if not there.size or not hot.size:
            continue
        level = float(view.load[rank])
        num_cold = int((np.abs(view.load - level) <= LEVEL * view.load.mean()).sum())
        wanted = (float(view.load.max()) - level) / (1 / num_hot + 1 / num_cold)
        shift = view.heat[hot][:, None] - view.heat[there][None, :]
        off = np.where(shift > 0, np.abs(shift - wanted), np.inf).ravel()
        for at in np.argsort(off, kind="stable")[:NUM_OF_EACH].tolist():
            mine, its = int(hot[at // len(there)]), int(there[at % len(there)])
            if np.isfinite(off[at]):
                swap = ((mine, int(view.row[its])), (its, int(view.row[mine])))
                found.append((float(off[at]), swap))
    return [change for _, change in sorted(found)[:NUM_OF_EACH]]


def _changed(row: IntArray, change: Change) -> IntArray:
    out = row.copy()
    for slot, expert in change:
        out[slot] = expert
    return out


def _with_rows(placement: Placement, rows: IntArray) -> Placement:
    return Placement(rows, placement.num_experts, placement.layout, placement.num_shared)
