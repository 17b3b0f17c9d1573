"""Transfers in rounds: no rank sends, or receives, more in one than it may.

Ranks as senders and ranks as receivers are the two sides of a graph, and transfers its edges.
Its edges can be given as many colours as its busiest rank has edges, with none twice at one
rank (Koenig's theorem; the proof by alternating paths is the method here), and so many colours
make a round as rows fit. There are never more rounds than the busiest rank needs, and within a
round every rank knows all its partners from the list alone, so that none waits in a circle.

Axes    M transfers   N ranks
"""

from collections import Counter

import numpy as np

from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.wave import SOURCE, TARGET

Edge = tuple[int, int]


def transfer_rounds(moves: IntArray, layout: SlotLayout, *, round_rows: int) -> IntArray:
    """[M] the round, from 0, of each transfer; earlier transfers go first where they can.

    A copy within a rank goes over no wire and takes no room.
    """
    ranks = layout.rank_of_slot()
    pairs = list(
        zip(ranks[moves[:, SOURCE]].tolist(), ranks[moves[:, TARGET]].tolist(), strict=True)
    )
    over_wire = [nth for nth, (sender, receiver) in enumerate(pairs) if sender != receiver]
    colours = _Colours([pairs[nth] for nth in over_wire])
    rounds = np.zeros(len(moves), dtype=np.int32)
    for nth, colour in zip(over_wire, colours.all(), strict=True):
        rounds[nth] = colour // round_rows
    return rounds


class _Colours:
    """Edges that get their colours one after another."""

    def __init__(self, edges: list[Edge]) -> None:
        self._edges = edges
        degrees = (Counter(edge[side] for edge in edges) for side in (0, 1))
        self._num_colours = max((n for degree in degrees for n in degree.values()), default=0)
        self._at: tuple[dict[Edge, int], dict[Edge, int]] = ({}, {})
        """For senders and for receivers: the edge of a rank and colour."""

    def all(self) -> list[int]:
        """[M] colour of each edge."""
        for nth in range(len(self._edges)):
            self._set(nth, self._colour_for(nth))
        found = [0] * len(self._edges)
        for (_, colour), nth in self._at[0].items():
            found[nth] = colour
        return found

    def _set(self, nth: int, colour: int) -> None:
        for side in (0, 1):
            self._at[side][self._edges[nth][side], colour] = nth

    def _colour_for(self, nth: int) -> int:
        """Find the first colour that neither end has; else make one free at both."""
        sender, receiver = self._edges[nth]
        free = [
            [c for c in range(self._num_colours) if (rank, c) not in self._at[side]]
            for side, rank in ((0, sender), (1, receiver))
        ]
        common = sorted(set(free[0]) & set(free[1]))
        if common:
            return common[0]
        self._exchange(receiver, free[0][0], free[1][0])
        return free[0][0]

    def _exchange(self, receiver: int, colour: int, other: int) -> None:
        """Exchange two colours on the path that leaves a receiver by the first of them.

        The path ends, and never at a sender that lacks the first colour: it comes to senders
        by that colour only.
        """
        path: list[int] = []
        side, rank, next_colour = 1, receiver, colour
        while (nth := self._at[side].get((rank, next_colour))) is not None:
            path.append(nth)
            side = 1 - side
            rank = self._edges[nth][side]
            next_colour = other if next_colour == colour else colour
        swapped = [other if at % 2 == 0 else colour for at in range(len(path))]
        for at, nth in enumerate(path):
            for end in (0, 1):
                del self._at[end][self._edges[nth][end], colour if at % 2 == 0 else other]
        for nth, new in zip(path, swapped, strict=True):
            self._set(nth, new)
