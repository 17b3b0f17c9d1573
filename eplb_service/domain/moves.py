"""The way between two placements: which slot keeps its expert, and who sends to whom.

Axes    L MoE layers   P slots   S slots of one rank   M transfers   N ranks
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eplb_service.domain.errors import InvalidPlacement
from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.rules import require_fit
from eplb_service.domain.wave import SOURCE, TARGET


def align(old: Placement, new: Placement) -> Placement:
    """Reorder each rank's new slots so that an expert that stays keeps its slot.

    The others stay in the slot that `new` gave them where it is free; the rest take
    the free slots, both in slot order, and those that were empty last. A placement
    that was aligned to the one before it is thereby restored exactly by the way back.
    Raises MisfitPlacement unless shapes agree; `new` must hold no expert twice on a rank.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> old = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)
    >>> new = placement_from_ranks([[[1, 0], [3, 2]]], num_experts=4)
    >>> align(old, new).phy2log.tolist()
    [[0, 1, 2, 3]]
    """
    require_fit(new, old)
    aligned = new.phy2log.copy()
    changed = np.flatnonzero((old.phy2log != new.phy2log).any(axis=1))
    for rank in range(old.layout.num_ranks):
        own = old.layout.slots_of(rank)
        aligned[changed, own] = _align_rank(old.phy2log[changed, own], new.phy2log[changed, own])
    return Placement(aligned, new.num_experts, new.layout, new.num_shared)


def _align_rank(old: IntArray, new: IntArray) -> IntArray:
    """Align one rank's slots [C, S] of the changed layers."""
    out = np.full_like(new, EMPTY)
    same = (new[:, :, None] == old[:, None, :]) & (new[:, :, None] != EMPTY)
    layers, source, target = np.nonzero(same)
    out[layers, target] = new[layers, source]
    waiting = (new != EMPTY) & ~same.any(axis=2)
    in_place = waiting & (out == EMPTY)
    out[in_place] = new[in_place]
    waiting &= ~in_place
    taken = np.where(out == EMPTY, old == EMPTY, 2)
    slots = np.argsort(taken, axis=1, kind="stable").astype(np.int32)
    at, _ = np.nonzero(waiting)
    nth = (np.cumsum(waiting, axis=1) - 1)[waiting]
    out[at, slots[at, nth]] = new[waiting]
    return out


@dataclass(slots=True)
class _Senders:
    """Picks the source of each transfer and remembers how much every rank sends."""

    ranks: list[int]
    """[P] rank of each slot."""
    nodes: Sequence[str]
    num_sends: dict[int, int] = field(default_factory=dict[int, int])

    def pick(self, holders: Sequence[int], target: int) -> int:
        """Return the source slot: on the target's rank, else on its node, else least busy."""
        to = self.ranks[target]
        for slot in holders:
            if self.ranks[slot] == to:
                return slot
        near = [s for s in holders if self.nodes and self.nodes[self.ranks[s]] == self.nodes[to]]
        source = min(near or holders, key=lambda s: (self.num_sends.get(self.ranks[s], 0), s))
        self.num_sends[self.ranks[source]] = self.num_sends.get(self.ranks[source], 0) + 1
        return source


def transfers(old: Placement, new: Placement, *, nodes: Sequence[str] = ()) -> IntArray:
    """List who sends what: [M, 4] layer, expert, source slot, target slot.

    One row for each slot that gets another expert, by layer and target slot. A source
    holds its expert in `old`: a replica on the target's own rank first (copied within
    the rank, nothing goes over the wire), then, where `nodes` names each rank's node,
    one on the same node, then the rank with the fewest sends so far, ties to the lower
    slot. Raises InvalidPlacement when no slot of `old` holds what is needed.
    """
    moved = (old.phy2log != new.phy2log) & (new.phy2log != EMPTY)
    senders = _Senders(old.layout.rank_of_slot().tolist(), nodes)
    listed: list[tuple[int, int, int, int]] = []
    for layer in np.flatnonzero(moved.any(axis=1)).tolist():
        targets = np.flatnonzero(moved[layer]).tolist()
        holders = _holders(old.phy2log[layer])
        for target in targets:
            expert = int(new.phy2log[layer, target])
            if expert not in holders:
                raise InvalidPlacement(
                    f"layer {layer}: slot {target} needs expert {expert}, which no slot of the "
                    "placement before holds; nothing can send it"
                )
            listed.append((layer, expert, senders.pick(holders[expert], target), target))
    return np.array(listed, dtype=np.int32).reshape(-1, 4)


def _holders(row: IntArray) -> dict[int, list[int]]:
    """Slots of every expert of one layer, in slot order."""
    holders: dict[int, list[int]] = {}
    for slot, expert in enumerate(row.tolist()):
        holders.setdefault(expert, []).append(slot)
    return holders


def crosses_ranks(
    moves: IntArray, placement: Placement
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[M] whether each transfer goes from one rank to another, rather than within one."""
    ranks = placement.layout.rank_of_slot()
    return ranks[moves[:, SOURCE]] != ranks[moves[:, TARGET]]


def num_moves(old: Placement, new: Placement) -> int:
    """Slots that get another expert; a slot that becomes empty costs nothing."""
    return int(((old.phy2log != new.phy2log) & (new.phy2log != EMPTY)).sum())
