"""Emptying ranks of one layer with as few moves as it takes, and filling ranks that are back.

An expert that only masked ranks hold goes elsewhere, hottest first: into a slot that may be
filled, else in the place of a replica whose expert has another one, where the rank is then the
least loaded under an even split. Slots that may be filled and are left over get the experts whose
replicas are then the hottest.

Axes    L MoE layers   E logical experts   P slots   N ranks
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.ids import FloatArray, IntArray
from eplb_service.domain.placement import EMPTY, Placement

_Mask = NDArray[np.bool_]


def evacuated(
    placement: Placement,
    heat: FloatArray,
    layers: tuple[int, ...],
    *,
    masked: tuple[int, ...],
    refilled: tuple[int, ...] = (),
    is_filled: bool = True,
) -> Placement:
    """Return the placement with masked ranks empty, and ranks that are back full, in some layers.

    heat         [L, E]
    is_filled    whether slots of ranks that are back are filled that no expert needs

    Only routed experts move; shared ones stay where they are. Raises InvalidRequest, with how
    many experts have no room, where the other ranks have fewer slots than there are experts.
    """
    ranks = placement.layout.rank_of_slot()
    is_masked, is_open = np.isin(ranks, masked), np.isin(ranks, refilled)
    _require_room(placement, layers, is_masked, is_open, masked)
    phy2log = placement.phy2log.copy()
    for layer in layers:
        row = phy2log[layer]
        routed = placement.routed()[layer]
        row[routed & is_masked] = EMPTY
        draft = _Layer(row, ranks, heat[layer], is_open & (row == EMPTY))
        draft.bring_home()
        if is_filled:
            draft.fill()
    return Placement(phy2log, placement.num_experts, placement.layout, placement.num_shared)


def emptied_before(placement: Placement, masked: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks that are masked no more: in some layer they hold no routed expert at all.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> emptied_before(placement_from_ranks([[[0, 1], [-1, -1]]], num_experts=2), masked=())
    (1,)
    """
    routed, layout = placement.routed(), placement.layout
    return tuple(
        rank
        for rank in range(layout.num_ranks)
        if rank not in masked
        and layout.slots_per_rank[rank]
        and not routed[:, layout.slots_of(rank)].any(axis=1).all()
    )


def _require_room(
    placement: Placement,
    layers: tuple[int, ...],
    is_masked: _Mask,
    is_open: _Mask,
    masked: tuple[int, ...],
) -> None:
    usable = placement.routed() | (is_open & (placement.phy2log == EMPTY))
    room = (usable & ~is_masked).sum(axis=1)
    short = [layer for layer in layers if room[layer] < placement.num_experts]
    if short:
        worst = min(short, key=lambda layer: (int(room[layer]), layer))
        raise InvalidRequest(
            f"without ranks {list(masked)} layer {worst} has {room[worst]} slots for "
            f"{placement.num_experts} experts: {placement.num_experts - room[worst]} experts are "
            f"without room ({len(short)} such layers); undrain a rank or deploy with more "
            "redundancy, nothing changed"
        )


@dataclass(slots=True)
class _Layer:
    """One layer while its experts find room."""

    row: IntArray
    """[P] experts by slot, changed in place."""
    ranks: IntArray
    """[P] rank of each slot."""
    heat: FloatArray
    """[E]"""
    is_open: _Mask
    """[P] empty slots that may be filled."""

    @property
    def _routed(self) -> _Mask:
        return (self.row >= 0) & (self.row < len(self.heat))

    def _counts(self) -> NDArray[np.intp]:
        return np.bincount(self.row[self._routed], minlength=len(self.heat))

    def _each(self) -> FloatArray:
        """[E] tokens of one replica of each expert under an even split."""
        return self.heat / np.maximum(self._counts(), 1)

    def _share(self) -> FloatArray:
        """[P] tokens of each slot under an even split."""
        held = np.where(self._routed, self.row, 0)
        return np.where(self._routed, self._each()[held], 0.0)

    def bring_home(self) -> None:
        """Give every expert without a slot one."""
        orphans = np.flatnonzero(self._counts() == 0)
        for expert in orphans[np.lexsort((orphans, -self.heat[orphans]))].tolist():
            held = np.where(self._routed, self.row, 0)
            spare = self._routed & (self._counts()[held] > 1)
            usable = np.flatnonzero(self.is_open if self.is_open.any() else spare)
            share = self._share()
            load = np.bincount(self.ranks, share)
            after = load[self.ranks[usable]] - share[usable]
            self._take(int(usable[np.argmin(after)]), expert)

    def fill(self) -> None:
        """Fill what may be filled with the experts that are hottest by replica."""
        for slot in np.flatnonzero(self.is_open).tolist():
            own = self.row[(self.ranks == self.ranks[slot]) & self._routed]
            each = self._each()
            each[own] = -1.0
            if each.max() >= 0:
                self._take(slot, int(each.argmax()))

    def _take(self, slot: int, expert: int) -> None:
        self.row[slot] = expert
        self.is_open[slot] = False
