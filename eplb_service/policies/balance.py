"""One layer's balance, and what it becomes when slots change hands.

Axes    E logical experts   N ranks
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.ids import FloatArray

LEAST_GAIN = 1e-9
"""Relative; less is rounding."""
SPREAD_WEIGHT = 0.01
"""How much the spread of all ranks counts beside the peak: only to tell equal peaks apart."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """On one rank, one expert takes the slot of another."""

    rank: int
    out: int
    into: int


class Balance:
    """Which experts each rank of one layer holds, and the load that follows."""

    def __init__(self, heat: FloatArray, ranks: Sequence[Sequence[int]], split: FloatArray) -> None:
        self.heat, self.split = heat, split
        self.ranks = [list(experts) for experts in ranks]
        self.holders: list[list[int]] = [[] for _ in range(len(heat))]
        for rank, experts in enumerate(ranks):
            for expert in experts:
                self.holders[expert].append(rank)
        self._dropped: dict[tuple[int, int], FloatArray] = {}
        self.load = self._loads()

    def _loads(self) -> FloatArray:
        """[N] tokens of each rank, from nothing but the holders."""
        counts = np.array([len(holders) for holders in self.holders], dtype=np.intp)
        experts = np.repeat(np.arange(len(counts)), counts)
        nth = np.arange(len(experts)) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = self.heat[experts] * self.split[counts[experts], nth]
        held_by = np.array([rank for holders in self.holders for rank in holders], dtype=np.intp)
        load = np.zeros(len(self.ranks))
        np.add.at(load, held_by, tokens)
        return load

    def _tokens(self, expert: int, count: int) -> FloatArray:
        """[count] tokens of each of so many replicas."""
        return self.heat[expert] * self.split[count, :count]

    @property
    def peak(self) -> float:
        """Tokens of the most loaded rank."""
        return float(self.load.max())

    def score(self, loads: FloatArray) -> FloatArray:
        """[...] how bad loads [..., N] are: the peak, and a little of their spread."""
        squares = np.einsum("...n,...n->...", loads, loads)
        return loads.max(axis=-1) + SPREAD_WEIGHT * np.sqrt(squares / loads.shape[-1])

    def replicated(self) -> list[tuple[int, int]]:
        """Rank and expert of every replica that is not the only one."""
        return [
            (rank, expert)
            for expert, holders in enumerate(self.holders)
            if len(holders) > 1
            for rank in holders
        ]

    def with_holders(self, expert: int, holders: Sequence[int]) -> FloatArray:
        """[N] change of load if these ranks, ascending, held the expert."""
        tokens = np.zeros(len(self.load))
        tokens[holders] = self._tokens(expert, len(holders))
        now = self.holders[expert]
        tokens[now] -= self._tokens(expert, len(now))
        return tokens

    def moved(self, experts: Sequence[int], source: int, target: int) -> FloatArray:
        """[len(experts), N] change of load if one rank gave its replica of each to another."""
        tokens = np.zeros((len(experts), len(self.load)))
        single = self.heat[np.array(experts)] * self.split[1, 0]
        tokens[:, source], tokens[:, target] = -single, single
        for at, expert in enumerate(experts):
            now = self.holders[expert]
            if len(now) > 1:
                then = [rank for rank in now if rank != source]
                insort(then, target)
                tokens[at] = self.with_holders(expert, then)
        return tokens

    def dropped(self, expert: int, rank: int) -> FloatArray:
        """[N] change of load if a rank gave its replica up; kept until the expert changes."""
        kept = self._dropped.get((expert, rank))
        if kept is None:
            kept = self.with_holders(expert, [r for r in self.holders[expert] if r != rank])
            self._dropped[expert, rank] = kept
        return kept

    def added(self, expert: int, ranks: Sequence[int]) -> FloatArray:
        """[len(ranks), N] change of load if one more rank, each of these, held the expert."""
        holders, targets = np.array(self.holders[expert]), np.array(ranks)
        count = len(holders)
        shares = self._tokens(expert, count + 1)
        is_before = holders[None, :] < targets[:, None]
        tokens = np.zeros((len(targets), len(self.load)))
        tokens[:, holders] = np.where(is_before, shares[:count], shares[1:])
        tokens[:, holders] -= self._tokens(expert, count)
        tokens[np.arange(len(targets)), targets] = shares[is_before.sum(axis=1)]
        return tokens

    def apply(self, changes: Sequence[Replaced]) -> None:
        """Let slots change hands."""
        touched = {expert for change in changes for expert in (change.out, change.into)}
        for expert in touched:
            holders = self.holders[expert]
            self.load[holders] -= self._tokens(expert, len(holders))
            for rank in holders:
                self._dropped.pop((expert, rank), None)
        for change in changes:
            experts = self.ranks[change.rank]
            experts[experts.index(change.out)] = change.into
            self.holders[change.out].remove(change.rank)
            insort(self.holders[change.into], change.rank)
        for expert in touched:
            holders = self.holders[expert]
            self.load[holders] += self._tokens(expert, len(holders))
