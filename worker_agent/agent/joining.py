"""The start of a rank group: what all its ranks load, and that they all loaded the same.

Runs once at attach, on the engine's thread, over the agreement's group.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.errors import AttachRefused, EplbError, InvalidTable, MisfitPlacement
from eplb_service.domain.ids import (
    Digest,
    Epoch,
    Incarnation,
    IntArray,
    Revision,
    array_bytes,
    digest_of,
)
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import require_fit, require_sound
from eplb_service.domain.shares import (
    Ownership,
    ShareName,
    Shares,
    dispatch_violations,
    table_digest,
)
from eplb_service.protocol.attach import Loaded, placement_to_load, require_same
from eplb_service.protocol.messages import Welcome
from worker_agent.ports.engine import EnginePort
from worker_agent.ports.group import GroupPort

log = logging.getLogger(__name__)

UNHEARD = (1 << 63) - 1
"""Loses against anything that a rank says; nothing that is gathered is that large."""
NO_OFFER = -1


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """What one rank serves at the start."""

    name: ShareName
    placement: Placement
    table: IntArray
    """[L, E, J] this rank's dispatch table."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What one rank was told to load."""

    epoch: Epoch
    placement: Placement
    table: IntArray
    """[L, E, J] this rank's dispatch table; each rank is told its own alone."""


def gather(group: GroupPort, values: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the values of every rank, by rank. Collective; Raises GroupLost.

    Each rank fills its own place of one vector, and the minimum fills the rest.
    """
    width = len(values)
    vector = [UNHEARD] * (width * group.num_ranks)
    vector[group.rank * width : (group.rank + 1) * width] = values
    heard = group.agree(vector)
    return [heard[start : start + width] for start in range(0, len(heard), width)]


def meet(group: GroupPort, fingerprint: Digest, *, started_at_ms: int) -> Incarnation:
    """Return the group's incarnation: when its rank 0 started. Collective.

    Comes before all else, and is of one length whatever ranks hold: a collective whose lengths
    differ ends processes without a word. Raises AttachRefused unless the fingerprint, of model,
    layout and settings, is the same on all ranks.
    """
    heard = gather(group, (started_at_ms, fingerprint))
    usual, _ = Counter(row[1] for row in heard).most_common(1)[0]
    odd = [rank for rank, row in enumerate(heard) if row[1] != usual]
    if odd:
        raise AttachRefused(
            f"rank {group.rank}: ranks {odd} of {group.num_ranks} came with another model, layout "
            "of slots or settings than most; no step runs, start the group again with equal ones"
        )
    return Incarnation(heard[0][0])


def gather_columns(group: GroupPort, own: IntArray, *, num_columns: int, base: int) -> IntArray:
    """Return [L, P] out of every rank's columns [L, S] from `base` on. Collective."""
    whole = np.full((own.shape[0], num_columns), UNHEARD, dtype=np.int64)
    whole[:, base : base + own.shape[1]] = own
    heard = np.array(group.agree(whole.ravel().tolist()), dtype=np.int64)
    return heard.reshape(whole.shape).astype(np.int32)


def shares_digest(tables: Sequence[Digest], ownership: Ownership = Ownership.OWN) -> Digest:
    """Fingerprint of all ranks' dispatch tables, as a wave names those that it brings.

    Where tokens are replicated there is one table for all ranks.
    """
    named = tables[:1] if ownership is Ownership.REPLICATED else tables
    return digest_of((array_bytes(np.array(named, dtype=np.int64)),))


def initial_serving(
    group: GroupPort,
    placement: Placement,
    table: IntArray,
    *,
    ownership: Ownership = Ownership.OWN,
) -> Serving:
    """Name what the engine serves by itself: epoch 0, revision 0. Collective.

    Raises AttachRefused if ranks whose tokens are replicated have different tables.
    """
    tables = [Digest(row[0]) for row in gather(group, (table_digest(table),))]
    if ownership is Ownership.REPLICATED and len(set(tables)) > 1:
        raise AttachRefused(
            "ranks that hold the same tokens came with different dispatch tables, so a token would "
            "be computed twice or never; no step runs, start the group again"
        )
    digest = shares_digest(tables, ownership)
    name = ShareName(Epoch(0), placement.digest(), Revision(0), digest)
    return Serving(name, placement, table)


def offer_of(
    welcome: Welcome | None, initial: Serving, *, rank: int, staging_rows: int
) -> Offer | None:
    """Return what a Welcome offers to load; None where there is none, or none that fits here.

    staging_rows    0 where the rank can put no other expert into its slots
    """
    if welcome is None:
        return None
    placement = welcome.placement
    try:
        require_fit(placement, initial.placement)
        require_sound(placement)
        table = _table_of(welcome.shares, rank, initial, placement)
        if not staging_rows:
            _require_held(placement, initial.placement, rank)
    except EplbError as error:
        log.warning("welcome does not fit", extra={"code": error.code, "text": str(error)})
        return None
    return Offer(welcome.epoch, placement, table)


def load_together(
    group: GroupPort,
    engine: EnginePort,
    initial: Serving,
    offer: Offer | None,
    *,
    ownership: Ownership = Ownership.OWN,
) -> Serving:
    """Load what all ranks were offered, or else leave all at the initial. Collective."""
    told = (NO_OFFER, 0, 0)
    if offer is not None:
        told = (offer.epoch, offer.placement.digest(), table_digest(offer.table))
    heard = gather(group, told)
    shares = shares_digest([Digest(row[2]) for row in heard], ownership)
    offered = [
        None
        if row[0] == NO_OFFER
        else ShareName(Epoch(row[0]), Digest(row[1]), Revision(0), shares)
        for row in heard
    ]
    chosen = placement_to_load(offered)
    if offer is None or chosen is None or chosen == initial.name:
        return initial
    engine.load(offer.placement, offer.table)
    return Serving(chosen, offer.placement, offer.table)


def require_equal_start(group: GroupPort, settings: Digest, served: ShareName) -> None:
    """Raise AttachRefused unless every rank has the same settings and serves the same."""
    own = (settings, served.epoch, served.placement, served.revision, served.digest)
    require_same([_loaded(row) for row in gather(group, own)])


def _table_of(shares: Shares, rank: int, initial: Serving, placement: Placement) -> IntArray:
    if len(shares.tables) not in (1, placement.layout.num_ranks):
        raise InvalidTable(f"{len(shares.tables)} dispatch tables came for the group")
    # One table is the addressed rank's own: all ranks' tables would be a hundred times larger.
    table = shares.tables[0 if len(shares.tables) == 1 else rank]
    if table.shape != initial.table.shape:
        raise InvalidTable(
            f"the dispatch table has shape {list(table.shape)}; expected "
            f"{list(initial.table.shape)}"
        )
    found = next(dispatch_violations(table, placement), None)
    if found is not None:
        raise InvalidTable(f"layer {found.layer}: {found.text}")
    return table


def _require_held(placement: Placement, initial: Placement, rank: int) -> None:
    own = placement.layout.slots_of(rank)
    if not np.array_equal(placement.phy2log[:, own], initial.phy2log[:, own]):
        raise MisfitPlacement(
            f"rank {rank} has no staging row, so its slots cannot hold anything but what it "
            "started with; the initial placement is served"
        )


def _loaded(told: Sequence[int]) -> Loaded:
    name = ShareName(Epoch(told[1]), Digest(told[2]), Revision(told[3]), Digest(told[4]))
    return Loaded(Digest(told[0]), name)
