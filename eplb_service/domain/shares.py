"""Shares: which replica of an expert each source rank uses.

Axes    L MoE layers   E logical experts   J rows of a dispatch table   N ranks

A dispatch table `[L, E, J]` belongs to one source rank and names the slot that
rank uses for each expert. Where a rank's tokens are its own, J is 1 (what
vllm-ascend calls log2phy and pushes as such). Where tokens are replicated over
ranks the table is the same on all of them and is indexed by token row modulo J.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import lcm

import numpy as np

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.ids import (
    Digest,
    Epoch,
    IntArray,
    Revision,
    array_bytes,
    digest_of,
    frozen,
)
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import Violation

EVEN_COUNTS = 4
"""Replica counts up to this one divide the rows of a replicated table, so that they are even."""


class Ownership(StrEnum):
    """Whose a rank's tokens are."""

    OWN = "own"
    """Each rank routes tokens that no other rank has."""
    REPLICATED = "replicated"
    """All ranks of the group see the same tokens and must pick the same replica."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The dispatch tables of one placement, for every source rank.

    Stored beside the placement; history, rollback and export carry both.
    """

    tables: IntArray
    """[N or 1, L, E, J] one table per source rank, or one for all where tokens are replicated."""
    ownership: Ownership

    def __post_init__(self) -> None:
        if self.tables.ndim != 4 or self.tables.dtype != np.int32:
            raise InvalidTable(
                f"dispatch tables have shape {list(self.tables.shape)} and dtype "
                f"{self.tables.dtype}; expected int32 [sources, layers, experts, rows]"
            )
        if self.ownership is Ownership.REPLICATED and self.tables.shape[0] != 1:
            raise InvalidTable(
                f"{self.tables.shape[0]} dispatch tables for replicated tokens; expected one, "
                "since every rank must pick the same replica"
            )
        frozen(self.tables)

    def table_of(self, rank: int) -> IntArray:
        """[L, E, J] the table that one source rank uses."""
        return self.tables[0 if self.ownership is Ownership.REPLICATED else rank]


@dataclass(frozen=True, slots=True)
class ShareName:
    """What names one revision of the shares; valid only on the placement it names."""

    epoch: Epoch
    placement: Digest
    revision: Revision
    digest: Digest


def num_rows(num_ranks: int) -> int:
    """J of tables for replicated tokens: one number for all placements of a group.

    A wave brings tables for the layers that it changes only, so J must not depend on what
    is placed. Replica counts that do not divide it are uneven by at most one row.

    >>> num_rows(2), num_rows(8)
    (2, 12)
    """
    return lcm(*range(1, min(num_ranks, EVEN_COUNTS) + 1))


def even_shares(placement: Placement, ownership: Ownership) -> Shares:
    """Spread the sources of every expert evenly over its replicas.

    Own tokens: source rank r uses replica (r mod count) in slot order, the rule
    that vllm-ascend uses without tensor parallelism. Replicated tokens: row j
    uses replica (j mod count); see num_rows.

    >>> from eplb_service.domain.placement import placement_from_ranks
    >>> p = placement_from_ranks([[[0, 1], [2, 0]]], num_experts=3)
    >>> even_shares(p, Ownership.OWN).tables[:, 0, :, 0].tolist()
    [[0, 1, 2], [3, 1, 2]]
    """
    slots, counts = placement.log2phy(), np.maximum(placement.replica_count(), 1)
    if ownership is Ownership.OWN:
        picks = np.arange(placement.layout.num_ranks)[:, None, None] % counts[None]
        tables = np.take_along_axis(slots[None], picks[..., None], axis=3)
    else:
        rows = num_rows(placement.layout.num_ranks)
        picks = np.arange(rows)[None, None, :] % counts[..., None]
        tables = np.take_along_axis(slots, picks, axis=2)[None]
    return Shares(np.ascontiguousarray(tables, dtype=np.int32), ownership)


def table_digest(table: IntArray) -> Digest:
    """Fingerprint of one source rank's dispatch table."""
    return digest_of((array_bytes(table),))


def dispatch_violations(table: IntArray, placement: Placement) -> Iterator[Violation]:
    """Every row names a slot that holds the expert: phy2log[table[e, j]] == e.

    table    [L, E, J]
    """
    want = (placement.num_layers, placement.num_experts)
    if table.shape[:2] != want or table.shape[2] < 1:
        yield Violation(
            "dispatch_names_the_expert",
            0,
            f"dispatch table has shape {list(table.shape)}; expected [{want[0]}, {want[1]}, rows]",
        )
        return
    inside = (table >= 0) & (table < placement.layout.num_slots)
    layers = np.arange(want[0])[:, None, None]
    held = placement.phy2log[layers, np.where(inside, table, 0)]
    wrong = ~inside | (held != np.arange(want[1])[None, :, None])
    for layer, expert, row in np.argwhere(wrong).tolist():
        yield Violation(
            "dispatch_names_the_expert",
            layer,
            f"row {row} of expert {expert} names slot {table[layer, expert, row]}, "
            "which does not hold it",
        )
