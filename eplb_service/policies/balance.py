"""One layer's balance: which experts each rank holds, and the load that follows.

Axes    E logical experts   N ranks
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.policies.kernels.even import Layer, Rule
from eplb_service.policies.terms import PLAIN, Terms

LEAST_GAIN = 1e-9
"""Relative; less is rounding."""


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
        self.load = self._loads()

    @cached_property
    def holders(self) -> list[list[int]]:
        """[E] ranks of each expert, ascending."""
        holders: list[list[int]] = [[] for _ in range(len(self.heat))]
        for rank, experts in enumerate(self.ranks):
            for expert in experts:
                holders[expert].append(rank)
        return holders

    def _loads(self) -> FloatArray:
        """[N] tokens of each rank, from nothing but what they hold."""
        held = np.fromiter(chain.from_iterable(self.ranks), np.intp)
        held_by = np.repeat(np.arange(len(self.ranks)), [len(held) for held in self.ranks])
        order = held.argsort(kind="stable")
        experts, held_by = held[order], held_by[order]
        counts = np.bincount(experts, minlength=len(self.heat))
        nth = np.arange(len(experts)) - np.repeat(np.cumsum(counts) - counts, counts)
        nth = self.terms.turned(nth, experts, counts[experts])
        costs = self.heat[experts] * self.split[counts[experts], nth]
        costs += self.terms.fixed * (self.heat[experts] > 0)
        load = np.zeros(len(self.ranks))
        np.add.at(load, held_by, costs * self._slowness[held_by])
        return load

    @property
    def layer(self) -> Layer:
        """The same for compiled loops."""
        rule = Rule(self.split, self._slowness, self.terms.turn, self.terms.fixed)
        return Layer(self.heat, rule, self.ranks)

    def holding(self, ranks: Sequence[Sequence[int]]) -> "Balance":
        """The same layer with other experts on its ranks."""
        return Balance(self.heat, ranks, self.split, self.terms)

    @property
    def peak(self) -> float:
        """Tokens of the most loaded rank."""
        return float(self.load.max())
