"""One wave: the step from one placement to the next, and each rank's part of it.

Axes    C changed layers   P slots   E experts   J dispatch rows   M transfers

A wave is one epoch. It fits every rank's staging memory and is atomic: all
ranks switch to it at the same step, or none does.
"""

from dataclasses import dataclass

import numpy as np

from eplb_service.domain.errors import InvalidOrder
from eplb_service.domain.ids import (
    Digest,
    Epoch,
    Generation,
    Incarnation,
    IntArray,
    Revision,
    array_bytes,
    digest_of,
    frozen,
)
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import ShareName

LAYER, EXPERT, SOURCE, TARGET = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class WaveContent:
    """What a wave changes; the same for every rank."""

    base_epoch: Epoch
    base: Digest
    """Fingerprint of the phy2log that the wave starts from."""
    target: Digest
    """Fingerprint of the phy2log that it ends in."""
    layers: IntArray
    """[C] changed layers, ascending."""
    rows: IntArray
    """[C, P] new phy2log row of each changed layer."""
    transfers: IntArray
    """[M, 4] layer, expert, source slot, target slot, in the one canonical order."""
    round_ends: tuple[int, ...]
    """Ends of the transfer rounds in `transfers`; every rank moves the same slice at a time."""
    dispatch: tuple[Digest, ...]
    """Fingerprint of each source's new dispatch rows; one entry where tokens are replicated."""

    def __post_init__(self) -> None:
        ends = (0, *self.round_ends)
        if self.transfers.ndim != 2 or self.transfers.shape[1] != 4:
            raise InvalidOrder(f"transfers have shape {list(self.transfers.shape)}; expected [M,4]")
        if not self.round_ends or ends[-1] != len(self.transfers) or list(ends) != sorted(ends):
            raise InvalidOrder(
                f"round ends {list(self.round_ends)} do not cover {len(self.transfers)} transfers"
            )
        if self.rows.ndim != 2 or len(self.rows) != len(self.layers):
            raise InvalidOrder(
                f"{len(self.layers)} changed layers but rows of shape {list(self.rows.shape)}"
            )
        for array in (self.layers, self.rows, self.transfers):
            frozen(array)

    @property
    def num_rounds(self) -> int:
        """Transfer rounds, at least one (it may be empty)."""
        return len(self.round_ends)

    def round_transfers(self, number: int) -> IntArray:
        """[m, 4] transfers of round `number`, counted from 1."""
        start = 0 if number == 1 else self.round_ends[number - 2]
        return self.transfers[start : self.round_ends[number - 1]]

    def apply(self, placement: Placement) -> Placement:
        """Return the placement after this wave; the base must be `placement`."""
        if placement.digest() != self.base:
            raise InvalidOrder(
                f"the wave starts from placement {self.base:016x}, "
                f"but {placement.digest():016x} is served"
            )
        phy2log = placement.phy2log.copy()
        phy2log[self.layers] = self.rows
        return Placement(phy2log, placement.num_experts, placement.layout, placement.num_shared)


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """One rank's part of one wave, under the number spent for it."""

    epoch: Epoch
    generation: Generation
    incarnation: Incarnation
    expires_at_step: int
    content: WaveContent
    dispatch: IntArray
    """[C, E, J] the addressed rank's new dispatch rows of the changed layers."""

    @property
    def digest(self) -> Digest:
        """Fingerprint of the wave under its number; see wave_digest."""
        return wave_digest(
            self.content, incarnation=self.incarnation, expires_at_step=self.expires_at_step
        )


def wave_digest(content: WaveContent, *, incarnation: Incarnation, expires_at_step: int) -> Digest:
    """Fingerprint of content, base, incarnation and expiry, equal on every rank.

    The generation stays out, so that a new controller re-sends an order unchanged.
    """
    head = np.array(
        [
            content.base_epoch,
            content.base,
            content.target,
            incarnation,
            expires_at_step,
            *content.round_ends,
        ],
        dtype=np.int64,
    )
    tables = (content.layers, content.rows, content.transfers)
    dispatch = np.array(content.dispatch, dtype=np.int64)
    return digest_of(map(array_bytes, (head, dispatch, *tables)))


def first_shares(epoch: Epoch, content: WaveContent) -> ShareName:
    """Name of the shares that a wave brings: revision 0 of its epoch."""
    dispatch = np.array(content.dispatch, dtype=np.int64)
    return ShareName(epoch, content.target, Revision(0), digest_of((array_bytes(dispatch),)))


def received_by(transfers: IntArray, layout: SlotLayout, rank: int) -> IntArray:
    """[m, 4] the transfers whose target slot is the rank's, in canonical order."""
    own = layout.slots_of(rank)
    target = transfers[:, TARGET]
    return transfers[(target >= own.start) & (target < own.stop)]


def sent_by(transfers: IntArray, layout: SlotLayout, rank: int) -> IntArray:
    """[m, 4] the transfers whose source slot is the rank's, in canonical order."""
    own = layout.slots_of(rank)
    source = transfers[:, SOURCE]
    return transfers[(source >= own.start) & (source < own.stop)]
