"""What the ranks that live serve on with, once others of their group are dead.

Axes    L MoE layers   P slots of the ranks that live   M lost experts

Pure: every rank that is given the same computes the same, alone, so nobody needs to be asked
who loads what. No heat is looked at: plans put right later what is uneven.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from eplb_service.domain.errors import CannotServeOn
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import EMPTY, Placement

RESTART = "start the group again: it loads the last settled placement, or one of its own size"


@dataclass(frozen=True, slots=True, eq=False)
class ServedOn:
    """A placement that has every expert again."""

    placement: Placement
    fills: IntArray
    """[M, 3] layer, expert and slot of each lost expert; shared experts too."""

    @property
    def lost(self) -> IntArray:
        """[M, 2] layer and expert of each expert that no rank held any more."""
        return self.fills[:, :2]


@dataclass(slots=True)
class _Giving:
    """Picks slots for lost experts, and remembers how many every rank has to fill."""

    layout: SlotLayout
    num_filled: dict[int, int] = field(default_factory=dict[int, int])

    def pick(self, row: list[int], num_experts: int) -> int:
        """Return a slot that can be spared: an empty one, else one of the most replicas; or -1.

        Of those on the rank that fills fewest so far, the lowest.
        """
        homes: dict[int, list[int]] = {}
        for slot, expert in enumerate(row):
            if expert < num_experts:
                homes.setdefault(expert, []).append(slot)
        spare = homes.pop(EMPTY, [])
        if not spare:
            doubles = {e: slots for e, slots in homes.items() if len(slots) > 1}
            most = min(doubles, key=lambda e: (-len(doubles[e]), e), default=EMPTY)
            spare = doubles.get(most, [])
        ranks = self.layout.rank_of_slot().tolist()
        chosen = min(spare, key=lambda s: (self.num_filled.get(ranks[s], 0), s), default=-1)
        if chosen >= 0:
            self.num_filled[ranks[chosen]] = self.num_filled.get(ranks[chosen], 0) + 1
        return chosen


def without(placement: Placement, dead: Collection[int]) -> Placement:
    """Return what the other ranks hold, numbered anew in their old order; may lack experts.

    Raises CannotServeOn where nobody is left, or a rank is named that there is not.
    """
    ranks = range(placement.layout.num_ranks)
    alive = [rank for rank in ranks if rank not in dead]
    if not alive or not set(dead) <= set(ranks):
        raise CannotServeOn(f"ranks {sorted(dead)} of {len(ranks)} ranks are named dead; {RESTART}")
    layout = SlotLayout(tuple(placement.layout.slots_per_rank[rank] for rank in alive))
    kept = np.isin(placement.layout.rank_of_slot(), alive)
    phy2log = np.ascontiguousarray(placement.phy2log[:, kept])
    return Placement(phy2log, placement.num_experts, layout, placement.num_shared)


def filled(left: Placement) -> ServedOn:
    """Give a slot to every expert that has none, in order of layer and expert.

    Empty slots are given first, then those of the expert with most replicas, the lower id first.
    Shared experts keep theirs. Raises CannotServeOn, with numbers, where slots do not suffice.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> left = placement_from_ranks([[[0, 1, 2], [0, 3, 5]]], num_experts=6)
    >>> filled(left).fills.tolist()
    [[0, 4, 0]]
    """
    phy2log, giving = left.phy2log.copy(), _Giving(left.layout)
    fills: list[tuple[int, int, int]] = []
    for layer, held in enumerate(left.phy2log):
        row: list[int] = held.tolist()
        lost = sorted(set(range(left.num_experts + left.num_shared)) - set(row))
        for nth, expert in enumerate(lost):
            slot = giving.pick(row, left.num_experts)
            if slot < 0:
                raise CannotServeOn(_too_few(left, layer, len(lost) - nth))
            row[slot] = expert
            fills.append((layer, expert, slot))
        phy2log[layer] = row
    placement = Placement(phy2log, left.num_experts, left.layout, left.num_shared)
    return ServedOn(placement, np.array(fills, dtype=np.int32).reshape(-1, 3))


def _too_few(left: Placement, layer: int, num_short: int) -> str:
    shared = f" and {left.num_shared} shared ones" if left.num_shared else ""
    return (
        f"layer {layer}: {left.layout.num_slots} slots of {left.layout.num_ranks} ranks that live "
        f"cannot hold {left.num_experts} experts{shared}; {num_short} more are needed; {RESTART}"
    )
