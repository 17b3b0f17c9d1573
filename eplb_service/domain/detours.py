"""Dispatch tables that avoid slots which do not hold what they should.

Axes    E experts   J dispatch rows   L layers   P slots

Pure, and the same on every rank that is given the same: where tokens are replicated, all ranks
must take the same way round.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import EMPTY, Placement


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One slot of one layer."""

    layer: int
    slot: int
    """Physical, over the group."""


def place_number(layer: int, slot: int, *, num_slots: int) -> int:
    """Number a slot of a layer, from 1, so that 0 can say that there is none.

    >>> place_number(2, 5, num_slots=8)
    22
    """
    return layer * num_slots + slot + 1


def place_of(number: int, *, num_slots: int) -> Place:
    """Return the slot that a number names.

    >>> place_of(22, num_slots=8)
    Place(layer=2, slot=5)
    """
    return Place(*divmod(number - 1, num_slots))


def others_of(placement: Placement, place: Place, avoided: Iterable[Place]) -> IntArray:
    """Return the slots that hold the same expert and may be used, ascending; empty: there is none.

    A slot that is declared empty has no expert, so no other holds it.
    """
    row = placement.phy2log[place.layer]
    shut = {other.slot for other in avoided if other.layer == place.layer} | {place.slot}
    expert = row[place.slot]
    same = np.flatnonzero(row == expert) if expert != EMPTY else np.empty(0, dtype=np.int64)
    return np.array([slot for slot in same.tolist() if slot not in shut], dtype=np.int32)


def around(table: IntArray, placement: Placement, avoided: Iterable[Place]) -> IntArray:
    """Return a dispatch table [L, E, J] that avoids slots as far as other replicas are there.

    Rows that named an avoided slot take the others in turn. The slot of an expert without another
    replica stays named: whether to serve by it is not decided here.
    """
    shut, after = tuple(avoided), table.copy()
    for place in shut:
        others = others_of(placement, place, shut)
        if len(others):
            rows = after[place.layer]
            expert, row = np.nonzero(rows == place.slot)
            rows[expert, row] = others[row % len(others)]
    return after
