"""A baseline that moves little: originals stay, replicas are chosen anew, some experts swap.

After the description of the swift balancer of vllm-ascend (docs of vllm-project/vllm-ascend,
eplb policy 2), with replicas counted right and limits taken from each layer's own load. Its
numbers are what incremental planning without a search looks like.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.domain.placement import Placement
from eplb_service.policies.balance import Balance
from eplb_service.policies.lpt import fill, grant_replicas
from eplb_service.policies.masking import on_active_ranks
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import layer_by_layer

MOST_SWAPS = 100
LEAST_GAIN = 0.01
"""Of a layer's mean load, that a swap must take off the hotter of its two ranks."""


@on_active_ranks
def swift(request: PolicyRequest) -> Placement:
    """Keep one replica of each expert where it is, and spread the spare slots anew."""

    def improve(_: int, before: Balance) -> Balance:
        drawn = _Drawn(before.heat, *_homes(before.ranks))
        drawn.spread([len(held) for held in before.ranks])
        drawn.swap()
        after = Balance(before.heat, drawn.ranks, request.split, request.terms)
        return after if after.peak < before.peak else before

    return layer_by_layer(request, improve)


def _homes(ranks: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Experts of each rank that are the first of their kind, slot by slot; their ranks [E]."""
    home: dict[int, int] = {}
    for at in range(max(map(len, ranks))):
        for rank, held in enumerate(ranks):
            if at < len(held):
                home.setdefault(held[at], rank)
    kept = [[expert for expert in held if home[expert] == rank] for rank, held in enumerate(ranks)]
    return kept, [home[expert] for expert in sorted(home)]


@dataclass(slots=True)
class _Drawn:
    """One layer on its way to a new placement."""

    heat: FloatArray
    ranks: list[list[int]]
    home: list[int]
    """[E] rank of the replica that stays."""

    def spread(self, sizes: Sequence[int]) -> None:
        """Fill every rank to its size: hot replicas to light ranks, one per pair of ranks."""
        granted = grant_replicas(self.heat.tolist(), num_slots=sum(sizes), max_replicas=len(sizes))
        each = self.heat / np.array(granted)
        sent: set[tuple[int, int]] = set()
        for expert in sorted(range(len(each)), key=lambda e: (-each[e], e)):
            for _ in range(granted[expert] - 1):
                taker = self._taker(expert, each, sizes, sent)
                if taker is None:
                    break
                sent.add((self.home[expert], taker))
                self.ranks[taker].append(expert)
        counts = [sum(expert in held for held in self.ranks) for expert in range(len(each))]
        fill(self.ranks, self.heat.tolist(), counts, sizes)

    def _taker(
        self, expert: int, each: FloatArray, sizes: Sequence[int], sent: set[tuple[int, int]]
    ) -> int | None:
        free = [
            rank
            for rank, held in enumerate(self.ranks)
            if len(held) < sizes[rank]
            and expert not in held
            and (self.home[expert], rank) not in sent
        ]
        return min(free, key=lambda r: (float(each[self.ranks[r]].sum()), r), default=None)

    def swap(self) -> None:
        """Swap experts of the hottest rank with lighter ranks, once each way between two."""
        counts = np.zeros(len(self.heat))
        for held in self.ranks:
            counts[held] += 1
        each = self.heat / counts
        load = np.array([each[held].sum() for held in self.ranks])
        used: set[tuple[int, int]] = set()
        for _ in range(MOST_SWAPS):
            if not self._swap_once(each, load, used):
                return

    def _swap_once(self, each: FloatArray, load: FloatArray, used: set[tuple[int, int]]) -> bool:
        hot = int(load.argmax())
        enough = float(load[hot] - LEAST_GAIN * load.mean())
        lightest: list[int] = np.argsort(load, kind="stable").tolist()
        for rank in lightest:
            if rank == hot or (hot, rank) in used or (rank, hot) in used:
                continue
            found = self._best_pair(hot, rank, each, load)
            if found is None or found[0] > enough:
                continue
            _, out, into = found
            self.ranks[hot][self.ranks[hot].index(out)] = into
            self.ranks[rank][self.ranks[rank].index(into)] = out
            load[hot] += each[into] - each[out]
            load[rank] += each[out] - each[into]
            used.add((hot, rank))
            return True
        return False

    def _best_pair(
        self, hot: int, rank: int, each: FloatArray, load: FloatArray
    ) -> tuple[float, int, int] | None:
        """Higher load of the two ranks after the best swap between them, and its experts."""
        here, there = self.ranks[hot], self.ranks[rank]
        pairs = (
            (max(float(load[hot] - d), float(load[rank] + d)), out, into)
            for out in here
            if out not in there
            for into in there
            if into not in here
            for d in (float(each[out] - each[into]),)
        )
        return min(pairs, default=None)
