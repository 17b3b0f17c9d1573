"""Small deployments and random sound waves over them; policies have no part in this.

Axes    L MoE layers   E experts   P slots   J dispatch rows   N ranks
"""

from dataclasses import dataclass
from math import lcm
from random import Random

import numpy as np

from eplb_service.domain.ids import Digest, Epoch, IntArray, Revision, array_bytes, digest_of
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import EMPTY, Placement, initial_placement
from eplb_service.domain.shares import Ownership, ShareName, Shares, table_digest
from eplb_service.domain.wave import WaveContent


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """What stays the same in one run."""

    initial: Placement
    ownership: Ownership
    agree_every: int

    @property
    def num_ranks(self) -> int:
        """N."""
        return self.initial.layout.num_ranks


def random_deployment(rng: Random) -> Deployment:
    """Draw a deployment of 2 to 4 ranks with unequal slots."""
    num_ranks = rng.randint(2, 4)
    slots = tuple(rng.randint(2, 3) for _ in range(num_ranks))
    num_experts = max(max(slots) + 1, sum(slots) - rng.randint(1, 3))
    placement = initial_placement(
        num_layers=rng.randint(1, 2), num_experts=num_experts, layout=SlotLayout(slots)
    )
    return Deployment(placement, rng.choice(tuple(Ownership)), rng.choice((1, 1, 2, 3)))


def neighbour(placement: Placement, rng: Random) -> Placement:
    """Draw a sound placement in which a few slots of some layers hold something else."""
    phy2log = placement.phy2log.copy()
    layers = rng.sample(range(placement.num_layers), rng.randint(1, placement.num_layers))
    for layer in layers:
        old: list[int] = phy2log[layer].tolist()
        row = old
        for _ in range(rng.randint(1, 4)):
            next_row = _changed(row, placement, rng)
            row = next_row if _keeps_slots(old, next_row, placement) else row
        phy2log[layer] = row
    return Placement(phy2log, placement.num_experts, placement.layout)


def _changed(row: list[int], placement: Placement, rng: Random) -> list[int]:
    ranks = placement.layout.rank_of_slot().tolist()
    on_rank = [{e for e, r in zip(row, ranks, strict=True) if r == n} for n in set(ranks)]
    slot = rng.randrange(len(row))
    out, rank = row[slot], ranks[slot]
    wanted = [e for e in range(placement.num_experts) if e not in on_rank[rank]]
    if not wanted:
        return row
    expert = rng.choice(wanted)
    new = list(row)
    if out == EMPTY or row.count(out) > 1:
        new[slot] = EMPTY if out != EMPTY and rng.random() < 0.2 else expert
        return new
    others = [s for s, e in enumerate(row) if e == expert and out not in on_rank[ranks[s]]]
    if others:
        new[slot], new[rng.choice(others)] = expert, out
    return new


def _keeps_slots(old: list[int], new: list[int], placement: Placement) -> bool:
    """Whether every expert that stays on a rank keeps its slot."""
    ranks: list[int] = placement.layout.rank_of_slot().tolist()
    before = {(rank, e): slot for slot, (rank, e) in enumerate(zip(ranks, old, strict=True))}
    return all(
        before.get((rank, e), slot) == slot or e == EMPTY
        for slot, (rank, e) in enumerate(zip(ranks, new, strict=True))
    )


def shares_of(placement: Placement, ownership: Ownership, rng: Random | None = None) -> Shares:
    """Spread sources, or token rows, over the replicas; from a random one on where given chance.

    Tables for replicated tokens always have lcm(1..N) rows, so that the layers that a
    wave leaves alone have as many as those that it brings.
    """
    slots, counts = placement.log2phy(), np.maximum(placement.replica_count(), 1)
    num_ranks = placement.layout.num_ranks
    is_own = ownership is Ownership.OWN
    rows = num_ranks if is_own else lcm(*range(1, num_ranks + 1))
    offsets = [[rng.randrange(6) if rng else 0 for _ in row] for row in counts]
    picks = (np.arange(rows)[None, None] + np.array(offsets)[..., None]) % counts[..., None]
    tables = np.take_along_axis(slots, picks, axis=2)
    tables = np.moveaxis(tables, 2, 0)[..., None] if is_own else tables[None]
    return Shares(np.ascontiguousarray(tables, dtype=np.int32), ownership)


def wave_content(
    old: Placement, new: Placement, *, base_epoch: Epoch, shares: Shares, rng: Random
) -> WaveContent:
    """Write down the way from one placement to the next, in one to three rounds."""
    layers = np.flatnonzero((old.phy2log != new.phy2log).any(axis=1)).astype(np.int32)
    transfers = [
        (layer, expert, rng.choice(np.flatnonzero(old.phy2log[layer] == expert).tolist()), slot)
        for layer in layers.tolist()
        for slot, expert in enumerate(new.phy2log[layer].tolist())
        if expert not in (EMPTY, old.phy2log[layer, slot])
    ]
    ends = sorted(rng.randint(0, len(transfers)) for _ in range(rng.randint(0, 2)))
    return WaveContent(
        base_epoch=base_epoch,
        base=old.digest(),
        target=new.digest(),
        layers=layers,
        rows=new.phy2log[layers],
        transfers=np.array(transfers, dtype=np.int32).reshape(-1, 4),
        round_ends=(*ends, len(transfers)),
        dispatch=tuple(table_digest(table[layers]) for table in shares.tables),
    )


def shares_digest(shares: Shares) -> Digest:
    """Fingerprint of all tables of one revision."""
    return digest_of((array_bytes(shares.tables),))


def loaded_name(epoch: Epoch, placement: Placement, shares: Shares) -> ShareName:
    """Name of what a group loads at its start."""
    return ShareName(epoch, placement.digest(), Revision(0), shares_digest(shares))


def rows_of(shares: Shares, rank: int, layers: IntArray) -> IntArray:
    """[C, E, J] one rank's dispatch rows of the changed layers."""
    return np.ascontiguousarray(shares.table_of(rank)[layers])
