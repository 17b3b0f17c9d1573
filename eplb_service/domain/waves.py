"""Cutting the way between two placements into waves that fit the ranks' staging memory.

Axes    L MoE layers   P slots   N ranks   C changed layers   M transfers
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.ids import Digest, Epoch, FloatArray, IntArray
from eplb_service.domain.moves import transfers
from eplb_service.domain.parts import cut_layer, receives
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import PlannedWave
from eplb_service.domain.rounds import transfer_rounds
from eplb_service.domain.rules import require_fit, require_sound
from eplb_service.domain.shares import Ownership, even_shares, table_digest
from eplb_service.domain.wave import WaveContent

LATER = Epoch(0)
"""Base epoch of every wave but the first: unknown until the wave before it is spent."""


@dataclass(frozen=True, slots=True)
class WaveLimits:
    """What a wave must fit."""

    staging_rows: tuple[int, ...]
    """[N] experts that each rank can hold beside its slots; copies within a rank count too."""
    round_bytes: int
    """Bytes that one rank may send, or receive, in one transfer round."""
    bytes_per_expert: int
    ownership: Ownership
    nodes: tuple[str, ...] = ()
    """[N] node of each rank, for near sources first; empty where not known."""
    distance: FloatArray | None = None
    """[N, N] price of the way from a rank to another, in the place of nodes."""
    sets_shares: bool = False
    """Whether revisions bring the best split once the last wave has settled."""
    masked: tuple[int, ...] = ()
    """Ranks that are to hold no routed expert: drained, or dead. Ascending."""
    dead: tuple[int, ...] = ()
    """Those of them that cannot send what they hold."""

    @property
    def round_rows(self) -> int:
        """Experts that one rank may send, or receive, in one round; at least one."""
        return max(1, self.round_bytes // max(1, self.bytes_per_expert))


@dataclass(slots=True)
class _Draft:
    """A wave being filled."""

    used: IntArray
    """[N] staging rows taken."""
    rows: dict[int, IntArray]
    """New phy2log row [P] by layer."""


def split(
    old: Placement,
    new: Placement,
    *,
    limits: WaveLimits,
    base_epoch: Epoch,
    layer_order: Sequence[int] = (),
) -> tuple[PlannedWave, ...]:
    """Cut the way from `old` to `new` into waves; none where they are equal.

    Layers go whole where they fit a rank's staging memory, each into the first wave
    with room; a layer that fits no wave goes in parts, each of which leaves a sound
    placement. Layers named in `layer_order` (worst first, say) come first. Only the
    first wave carries its base epoch; the controller fills in the others', with
    dataclasses.replace, when it spends them, and no digest depends on it. Raises
    InvalidPlacement when either end is unsound, MisfitPlacement when shapes differ or
    staging memory is too small for any way.
    """
    require_fit(new, old)
    require_sound(old)
    require_sound(new)
    room = np.array(limits.staging_rows, dtype=np.int32)
    drafts: list[_Draft] = []
    for layer in _ordered(np.flatnonzero((old.phy2log != new.phy2log).any(axis=1)), layer_order):
        first, before = 0, old.phy2log[layer]
        for row in cut_layer(old, new, layer, room):
            first = _place(drafts, layer, row, receives(before, row, old.layout), first, room) + 1
            before = row
    return _planned(old, drafts, limits, base_epoch)


def _ordered(
    changed: IntArray | np.ndarray[tuple[int], np.dtype[np.intp]], first: Sequence[int]
) -> list[int]:
    rank = {layer: at for at, layer in enumerate(first)}
    return sorted(changed.tolist(), key=lambda layer: (rank.get(layer, len(rank)), layer))


def _place(
    drafts: list[_Draft], layer: int, row: IntArray, needed: IntArray, first: int, room: IntArray
) -> int:
    """Put one layer's row into the first wave from `first` on with room; return its number."""
    for number in range(first, len(drafts)):
        if (drafts[number].used + needed <= room).all():
            drafts[number].used += needed
            drafts[number].rows[layer] = row
            return number
    drafts.append(_Draft(needed.copy(), {layer: row}))
    return len(drafts) - 1


def _planned(
    old: Placement, drafts: Sequence[_Draft], limits: WaveLimits, base_epoch: Epoch
) -> tuple[PlannedWave, ...]:
    waves: list[PlannedWave] = []
    before = old
    for draft in drafts:
        phy2log = before.phy2log.copy()
        for layer, row in draft.rows.items():
            phy2log[layer] = row
        after = Placement(phy2log, old.num_experts, old.layout, old.num_shared)
        epoch = LATER if waves else base_epoch
        content = wave_content(before, after, limits=limits, base_epoch=epoch)
        waves.append(PlannedWave(content, after, limits.ownership))
        before = after
    return tuple(waves)


def wave_content(
    before: Placement, after: Placement, *, limits: WaveLimits, base_epoch: Epoch
) -> WaveContent:
    """Write down one wave: changed rows, transfers in rounds, fingerprints of the shares.

    The canonical order of transfers is by round, then layer, then target slot.
    """
    layers = np.flatnonzero((before.phy2log != after.phy2log).any(axis=1)).astype(np.int32)
    moves = transfers(before, after, nodes=limits.nodes, distance=limits.distance, dead=limits.dead)
    rounds = transfer_rounds(moves, before.layout, round_rows=limits.round_rows)
    order = np.argsort(rounds, kind="stable")
    ends = np.cumsum(np.bincount(rounds, minlength=1)).tolist()
    return WaveContent(
        base_epoch=base_epoch,
        base=before.digest(),
        target=after.digest(),
        layers=layers,
        rows=after.phy2log[layers],
        transfers=moves[order],
        round_ends=tuple(ends),
        dispatch=_dispatch_digests(after, layers, limits.ownership),
    )


def _dispatch_digests(
    after: Placement, layers: IntArray, ownership: Ownership
) -> tuple[Digest, ...]:
    """Fingerprint the changed rows of every source's even table.

    A table for own tokens has one row whatever the other layers hold, so only the
    changed layers are computed; one for replicated tokens has a row count that depends
    on all of them.
    """
    if ownership is Ownership.REPLICATED:
        tables = even_shares(after, ownership).tables[:, layers]
    else:
        changed = Placement(
            after.phy2log[layers], after.num_experts, after.layout, after.num_shared
        )
        tables = even_shares(changed, ownership).tables
    return tuple(table_digest(table) for table in tables)
