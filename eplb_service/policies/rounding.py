"""From the best split to whole sources: each source rank sends an expert's tokens to one replica.

Per expert this is a small partition: sources of known size, replicas with a size to reach.
Sources that are near a replica come first, large before small, and take it while there is room
for half of them; then single sources change over or two swap, fullest replica against emptiest,
until every replica is as near its size as sources of this many sizes allow.

Axes    N ranks   B experts   C replicas of an expert, padded   A experts still open
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.replicas import IndexArray

ENOUGH = 2e-4
"""Distance from a replica's size, in mean loads of a rank, at which it is left alone."""
MAX_ROUNDS = 16
NUM_CANDIDATES = 32
"""Sources of one replica, the smallest first, that may change over."""
LEAST_GAIN = 0.999
"""Of the distance, that a change must stay below, its price included."""
REMOTE = 2
"""Distance of a rank on another node; 1 on the same node, 0 the rank itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Rounding:
    """What is to be partitioned."""

    tokens: FloatArray
    """[B, N] tokens of each source, in mean loads of a rank."""
    hosts: IndexArray
    """[B, C] rank of each replica, -1 for padding."""
    sizes: FloatArray
    """[B, C] tokens that each replica is to get, -inf for padding."""
    nodes: IndexArray
    """[N] number of each rank's node."""
    price: float
    """Tokens of imbalance that are given to keep one token one step nearer."""


@dataclass(frozen=True, slots=True, eq=False)
class _Fill:
    """A partition in the making; changed in place."""

    choice: IndexArray
    """[B, N] replica of each source."""
    room: FloatArray
    """[B, C] tokens that each replica still lacks; below 0 where it has too many."""


def rounded(task: Rounding) -> IndexArray:
    """[B, N] which replica, of C, each source uses."""
    fill = _filled(task)
    open_groups = np.arange(len(task.tokens))
    for _ in range(MAX_ROUNDS):
        off = np.abs(np.where(np.isfinite(task.sizes), fill.room, 0.0)[open_groups]).max(axis=1)
        open_groups = open_groups[off > ENOUGH]
        if not open_groups.size:
            break
        open_groups = _change_over(task, fill, open_groups)
    return fill.choice


def distance(task: Rounding, groups: IndexArray, sources: IndexArray) -> IndexArray:
    """[..., C] steps from a source to each replica of an expert: 0 itself, 1 its node, 2 away."""
    hosts = task.hosts[groups]
    there = np.where(hosts < 0, -1, task.nodes[np.maximum(hosts, 0)])
    is_near = there == task.nodes[sources][..., None]
    return REMOTE - is_near - (hosts == sources[..., None])


def _filled(task: Rounding) -> _Fill:
    """Give every source a replica, the near and the large first."""
    num_groups, num_ranks = len(task.tokens), len(task.nodes)
    everyone: IndexArray = np.arange(num_groups)
    nearest = np.empty(task.tokens.shape)
    for rank in range(num_ranks):
        nearest[:, rank] = distance(task, everyone, np.full(num_groups, rank)).min(axis=1)
    order = np.argsort(nearest * (1.0 + task.tokens.max(initial=0.0)) - task.tokens, axis=1)
    fill = _Fill(np.zeros(task.tokens.shape, dtype=np.intp), task.sizes.copy())
    large = 2.0 + 2 * task.tokens.sum(axis=1).max(initial=0.0)
    for nth in range(num_ranks):
        sources = order[:, nth]
        tokens = task.tokens[everyone, sources]
        steps = REMOTE - distance(task, everyone, sources)
        fits = fill.room >= 0.5 * tokens[:, None]
        picks = (fill.room + large * steps * fits).argmax(axis=1)
        fill.choice[everyone, sources] = picks
        fill.room[everyone, picks] -= tokens
    return fill


def _change_over(task: Rounding, fill: _Fill, groups: IndexArray) -> IndexArray:
    """Make the best change between the fullest and the emptiest replica of each expert.

    Returns the groups [A] that were changed; the others have nothing to win.
    """
    room, at = fill.room[groups], np.arange(len(groups))
    full = np.where(np.isfinite(room), room, np.inf).argmin(axis=1)
    empty = room.argmax(axis=1)
    wanted = (room[at, empty] - room[at, full]) / 2
    gives, given, far_given = _candidates(task, fill, groups, (full, empty))
    takes, taken, far_taken = _candidates(task, fill, groups, (empty, full))
    shift = given[:, :, None] - taken[:, None, :]
    off = np.abs(shift - wanted[:, None, None])
    away = far_given[:, :, None] + far_taken[:, None, :]
    cost = off + task.price * away
    most = LEAST_GAIN * wanted[:, None, None]
    cost = np.where((off < most) & (cost < most), cost, np.inf)
    best = cost.reshape(len(groups), -1).argmin(axis=1)
    out, back = best // cost.shape[2], best % cost.shape[2]
    wins = np.isfinite(cost[at, out, back])
    at, groups, full, empty = at[wins], groups[wins], full[wins], empty[wins]
    _assign(fill, groups, gives[at, out[wins]], empty)
    _assign(fill, groups, takes[at, back[wins]], full)
    shift = shift[at, out[wins], back[wins]]
    fill.room[groups, full] += shift
    fill.room[groups, empty] -= shift
    return groups


def _candidates(
    task: Rounding, fill: _Fill, groups: IndexArray, ends: tuple[IndexArray, IndexArray]
) -> tuple[IndexArray, FloatArray, FloatArray]:
    """Sources that could leave one replica for the other: who, tokens, and steps farther.

    The first of each [A, K] is nobody, -1; where there are fewer, tokens are infinite.
    """
    source, target = ends
    tokens = np.where(fill.choice[groups] == source[:, None], task.tokens[groups], np.inf)
    who = np.argsort(tokens, axis=1, kind="stable")[:, :NUM_CANDIDATES]
    tokens = np.take_along_axis(tokens, who, axis=1)
    steps = distance(task, groups[:, None], who)
    nth = np.arange(len(groups))
    farther = steps[nth, :, target] - steps[nth, :, source]
    nobody = np.zeros((len(groups), 1))
    weight = np.where(np.isfinite(tokens), tokens, 0.0)
    return (
        np.concatenate((nobody.astype(np.intp) - 1, who), axis=1),
        np.concatenate((nobody, np.where(np.isfinite(tokens), tokens, 1e30)), axis=1),
        np.concatenate((nobody, weight * farther.astype(np.float64)), axis=1),
    )


def _assign(fill: _Fill, groups: IndexArray, sources: IndexArray, picks: IndexArray) -> None:
    real: NDArray[np.bool_] = sources >= 0
    fill.choice[groups[real], sources[real]] = picks[real]
