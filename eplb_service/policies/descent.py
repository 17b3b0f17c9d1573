"""Steepest descent of one layer's peak: more replicas for what is hot, swaps with what is cold.

Three kinds of change are looked at, all for the most loaded rank: another rank takes
one of its experts in the place of one that has other replicas (one move); it gives up
such a replica itself for a cold expert (one move); it swaps two experts with one of the
least loaded ranks (two moves). Ties go to the first in order of rank and expert.

Axes    C candidates   N ranks
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.balance import LEAST_GAIN, Balance, Replaced

NUM_COLD_RANKS = 6
NUM_COLD_EXPERTS = 8
NUM_VICTIMS = 48
"""Replicas, those on the least loaded ranks first, that may make room for another expert."""

Changes = tuple[Replaced, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change and how bad the layer would be after it."""

    changes: Changes
    score: float
    peak: float


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
    origin = start if since is None else since
    state = Balance(start.heat, start.ranks, start.split, start.terms)
    best, ranks = start.peak, start.ranks
    left = effort.max_moves
    if left is not None:
        left -= num_changed(origin, state)
    for _ in range(effort.most_steps):
        if best <= effort.enough:
            break
        found = best_change(state, left, effort.enough)
        if found is None:
            break
        state.apply(found.changes)
        if effort.max_moves is not None:
            left = effort.max_moves - num_changed(origin, state)
        if state.peak < best * (1 - LEAST_GAIN):
            best, ranks = state.peak, [list(experts) for experts in state.ranks]
    return Balance(start.heat, ranks, start.split, start.terms)


def best_change(balance: Balance, max_moves: int | None, enough: float = 0.0) -> Candidate | None:
    """Find the change that wins most, per move where moves are limited; None where none wins.

    Lowering the peak further than is enough wins nothing.
    """
    before, peak = float(balance.score(balance.load, enough)), balance.peak
    best, best_gain = None, LEAST_GAIN * float(balance.load.mean())
    for candidate in _candidates(balance, enough):
        num_moves = len(candidate.changes)
        if candidate.peak > peak or (max_moves is not None and num_moves > max_moves):
            continue
        gain = (before - candidate.score) / (1 if max_moves is None else num_moves)
        if gain > best_gain:
            best, best_gain = candidate, gain
    return best


def num_changed(before: Balance, after: Balance) -> int:
    """Experts that ranks hold after and did not hold before."""
    pairs = zip(before.ranks, after.ranks, strict=True)
    return sum(len(set(now) - set(then)) for then, now in pairs)


def _candidates(balance: Balance, enough: float) -> Iterator[Candidate]:
    hottest = int(balance.load.argmax())
    replicas = balance.replicated()
    if replicas:
        yield from _spread(balance, hottest, replicas, enough)
        yield from _shed(balance, hottest, enough)
    yield from _swaps(balance, hottest, enough)


def _spread(
    balance: Balance, hottest: int, replicas: list[tuple[int, int]], enough: float
) -> Iterator[Candidate]:
    """One more rank takes an expert of the hottest, in the place of a replica that can go."""
    load = balance.load.tolist()
    victims = [(load[rank], rank, expert) for rank, expert in replicas if rank != hottest]
    victims = sorted(victims)[:NUM_VICTIMS]
    if not victims:
        return
    freed = balance.load + np.stack([balance.dropped(e, r) for _, r, e in victims])
    ranks, experts = np.array([(rank, expert) for _, rank, expert in victims]).T
    for expert in balance.ranks[hottest]:
        holds = np.zeros(len(load), dtype=np.bool_)
        holds[balance.holders[expert]] = True
        at = np.flatnonzero(~holds[ranks] & (experts != expert))
        if at.size and balance.heat[expert] > 0:
            loads = freed[at] + balance.added(expert, ranks[at])
            places = [victims[n][1:] for n in at.tolist()]
            yield _best(balance, loads, enough, partial(_take, places, expert))


def _take(places: Sequence[tuple[int, int]], into: int, at: int) -> Changes:
    """Let an expert take the place of the replica that was looked at as number `at`."""
    rank, out = places[at]
    return (Replaced(rank, out, into),)


def _shed(balance: Balance, hottest: int, enough: float) -> Iterator[Candidate]:
    """The hottest rank gives a replica up for a cold expert."""
    own = [expert for expert in balance.ranks[hottest] if len(balance.holders[expert]) > 1]
    if not own:
        return
    counts = np.array([len(holders) for holders in balance.holders])
    coldest = np.argsort(balance.heat / np.maximum(counts, 1), kind="stable").tolist()
    absent = (e for e in coldest if balance.holders[e] and hottest not in balance.holders[e])
    cold = [expert for expert, _ in zip(absent, range(NUM_COLD_EXPERTS), strict=False)]
    if not cold:
        return
    added = np.concatenate([balance.added(expert, [hottest]) for expert in cold])
    for expert in own:
        loads = balance.load + balance.dropped(expert, hottest) + added
        options = [(Replaced(hottest, expert, into),) for into in cold]
        yield _best(balance, loads, enough, options.__getitem__)


def _swaps(balance: Balance, hottest: int, enough: float) -> Iterator[Candidate]:
    """The hottest rank swaps an expert with one of the least loaded ranks."""
    coldest: list[int] = np.argsort(balance.load, kind="stable").tolist()
    for rank in [r for r in coldest if r != hottest and balance.ranks[r]][:NUM_COLD_RANKS]:
        here, there = set(balance.ranks[hottest]), set(balance.ranks[rank])
        given, taken = sorted(here - there), sorted(there - here)
        if given and taken:
            yield _best_swap(balance, (hottest, rank), given, taken, enough)


def _best_swap(
    balance: Balance, ranks: tuple[int, int], given: list[int], taken: list[int], enough: float
) -> Candidate:
    hottest, other = ranks
    away = balance.moved(given, hottest, other)
    back = balance.moved(taken, other, hottest)
    loads = balance.load + away[:, None, :] + back[None, :, :]

    def swap(at: int) -> Changes:
        out, into = given[at // len(taken)], taken[at % len(taken)]
        return Replaced(hottest, out, into), Replaced(other, into, out)

    return _best(balance, loads.reshape(-1, loads.shape[-1]), enough, swap)


def _best(
    balance: Balance, loads: FloatArray, enough: float, changes: Callable[[int], Changes]
) -> Candidate:
    """Build the candidate of the best of loads [C, N]."""
    scores = balance.score(loads, enough)
    at = int(scores.argmin())
    return Candidate(changes(at), float(scores[at]), float(loads[at].max()))
