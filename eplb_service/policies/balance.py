"""One layer's balance, and what it becomes when slots change hands.

Axes    E logical experts   N ranks
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.terms import PLAIN, Terms

IndexArray = npt.NDArray[np.intp]

LEAST_GAIN = 1e-9
"""Relative; less is rounding."""
SPREAD_WEIGHT = 0.05
"""How much the spread of all ranks counts beside the peak: what is level drifts apart later."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """On one rank, one expert takes the slot of another."""

    rank: int
    out: int
    into: int


class Balance:
    """Which experts each rank of one layer holds, and the load that follows.

    Load is in tokens; where the terms say so, in what tokens and experts cost their rank.
    """

    def __init__(
        self,
        heat: FloatArray,
        ranks: Sequence[Sequence[int]],
        split: FloatArray,
        terms: Terms = PLAIN,
    ) -> None:
        self.heat, self.split, self.terms = heat, split, terms
        self._slowness = terms.slowness(len(ranks))
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
        nth = self.terms.turned(nth, experts, counts[experts])
        costs = self.heat[experts] * self.split[counts[experts], nth]
        costs += self.terms.fixed * (self.heat[experts] > 0)
        held_by = np.array([rank for holders in self.holders for rank in holders], dtype=np.intp)
        load = np.zeros(len(self.ranks))
        np.add.at(load, held_by, costs * self._slowness[held_by])
        return load

    def _costs(self, expert: int, holders: Sequence[int] | IndexArray) -> FloatArray:
        """[C] what an expert costs each rank if these, ascending, held it."""
        if self.heat[expert] <= 0:
            return np.zeros(len(holders))
        return self._shares(expert, len(holders)) * self._slowness[holders]

    def _shares(self, expert: int, count: int) -> FloatArray:
        """[count] what each of so many replicas costs a rank of mean speed."""
        nth = self.terms.turned(np.arange(count), expert, count)
        return self.heat[expert] * self.split[count, nth] + self.terms.fixed

    @property
    def peak(self) -> float:
        """Tokens of the most loaded rank."""
        return float(self.load.max())

    def score(self, loads: FloatArray, enough: float = 0.0) -> FloatArray:
        """[...] how bad loads [..., N] are: the peak, if above enough, and some of their spread."""
        squares = np.einsum("...n,...n->...", loads, loads)
        return np.maximum(loads.max(axis=-1), enough) + SPREAD_WEIGHT * np.sqrt(
            squares / loads.shape[-1]
        )

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
        costs = np.zeros(len(self.load))
        costs[holders] = self._costs(expert, holders)
        now = self.holders[expert]
        costs[now] -= self._costs(expert, now)
        return costs

    def moved(self, experts: Sequence[int], source: int, target: int) -> FloatArray:
        """[len(experts), N] change of load if one rank gave its replica of each to another."""
        costs = np.zeros((len(experts), len(self.load)))
        heat = self.heat[np.array(experts)]
        single = heat * self.split[1, 0] + self.terms.fixed * (heat > 0)
        costs[:, source] = -single * self._slowness[source]
        costs[:, target] = single * self._slowness[target]
        for at, expert in enumerate(experts):
            now = self.holders[expert]
            if len(now) > 1:
                then = [rank for rank in now if rank != source]
                insort(then, target)
                costs[at] = self.with_holders(expert, then)
        return costs

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
        costs = np.zeros((len(targets), len(self.load)))
        if self.heat[expert] <= 0:
            return costs
        shares, slowness = self._shares(expert, count + 1), self._slowness
        is_before = holders[None, :] < targets[:, None]
        costs[:, holders] = np.where(is_before, shares[:count], shares[1:]) * slowness[holders]
        costs[:, holders] -= self._costs(expert, holders)
        own = shares[is_before.sum(axis=1)] * slowness[targets]
        costs[np.arange(len(targets)), targets] = own
        return costs

    def apply(self, changes: Sequence[Replaced]) -> None:
        """Let slots change hands."""
        touched = {expert for change in changes for expert in (change.out, change.into)}
        for expert in touched:
            holders = self.holders[expert]
            self.load[holders] -= self._costs(expert, holders)
            for rank in holders:
                self._dropped.pop((expert, rank), None)
        for change in changes:
            experts = self.ranks[change.rank]
            experts[experts.index(change.out)] = change.into
            self.holders[change.out].remove(change.rank)
            insort(self.holders[change.into], change.rank)
        for expert in touched:
            holders = self.holders[expert]
            self.load[holders] += self._costs(expert, holders)
