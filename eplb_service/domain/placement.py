"""Which logical expert sits in which physical slot.

Axes, used by every shape in this package:

    L  MoE layers            E  logical (routed) experts
    P  physical slots        R  most replicas any expert has
    N  ranks

Ids 0..E-1 are routed experts; E..E+num_shared-1 are shared experts that some
deployments keep in the slot array; EMPTY marks a slot declared empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.errors import InvalidSettings, InvalidTable
from eplb_service.domain.ids import Digest, IntArray, array_bytes, digest_of, frozen
from eplb_service.domain.layout import SlotLayout

EMPTY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The content of one deployment's slots.

    phy2log is the only stored map; every other view is derived from it, so two
    views can never disagree. A Placement has the right shape but need not be
    sound: rules.violations judges that.
    """

    phy2log: IntArray
    """[L, P] logical expert held by each slot, EMPTY where none."""
    num_experts: int
    layout: SlotLayout
    num_shared: int = 0
    """Shared experts that sit in slots, with the ids after the routed ones."""

    def __post_init__(self) -> None:
        if self.phy2log.ndim != 2 or self.phy2log.shape[1] != self.layout.num_slots:
            raise InvalidTable(
                f"phy2log has shape {list(self.phy2log.shape)}; expected [layers, "
                f"{self.layout.num_slots}] for slots per rank {list(self.layout.slots_per_rank)}"
            )
        if self.phy2log.dtype != np.int32:
            raise InvalidTable(f"phy2log has dtype {self.phy2log.dtype}; expected int32")
        frozen(self.phy2log)

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.phy2log.shape[0])

    def digest(self) -> Digest:
        """Fingerprint of content and shape; equal on every rank that holds the same map."""
        shape = np.array([self.num_experts, self.num_shared, *self.layout.slots_per_rank])
        return digest_of((array_bytes(shape), array_bytes(self.phy2log)))

    def replica_count(self) -> IntArray:
        """[L, E] how many slots hold each routed expert."""
        shape = (self.num_layers, self.num_experts)
        layers, slots = np.nonzero(self.routed())
        flat = layers * self.num_experts + self.phy2log[layers, slots]
        counts = np.bincount(flat, minlength=shape[0] * shape[1])
        return counts.reshape(shape).astype(np.int32)

    def routed(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """[L, P] whether each slot holds a routed expert."""
        return (self.phy2log >= 0) & (self.phy2log < self.num_experts)

    def log2phy(self) -> IntArray:
        """[L, E, R] all slots of each routed expert in slot order, padded with -1."""
        counts = self.replica_count()
        table = np.full((*counts.shape, max(1, int(counts.max(initial=1)))), -1, dtype=np.int32)
        layers, slots = np.nonzero(self.routed())
        experts = self.phy2log[layers, slots]
        order = np.lexsort((slots, experts, layers))
        layers, slots, experts = layers[order], slots[order], experts[order]
        flat = layers * self.num_experts + experts
        starts = np.concatenate(([0], np.cumsum(counts.ravel())))[flat]
        table[layers, experts, np.arange(flat.size) - starts] = slots
        return table

    def expert_map(self, rank: int) -> IntArray:
        """[L, E] the rank's local slot of each routed expert, -1 where it has none."""
        table = np.full((self.num_layers, self.num_experts), -1, dtype=np.int32)
        own = self.layout.slots_of(rank)
        layers, local = np.nonzero(self.routed()[:, own])
        table[layers, self.phy2log[:, own][layers, local]] = local
        return table


def placement_from_ranks(
    rows: Sequence[Sequence[Sequence[int]]], *, num_experts: int, num_shared: int = 0
) -> Placement:
    """Build a placement from per-layer, per-rank lists of logical ids.

    rows[layer][rank] lists the experts of that rank's slots in local order.
    Raises InvalidTable (ragged) when layers disagree on a rank's slot count.

    >>> placement_from_ranks([[[0, 1], [2, 0]]], num_experts=3).phy2log.tolist()
    [[0, 1, 2, 0]]
    """
    if not rows:
        raise InvalidTable("a placement needs at least one layer, got none")
    layout = SlotLayout(tuple(len(rank) for rank in rows[0]))
    for layer, ranks in enumerate(rows):
        sizes = tuple(len(rank) for rank in ranks)
        if sizes != layout.slots_per_rank:
            raise InvalidTable(
                f"ragged table: layer {layer} has slots per rank {list(sizes)}, layer 0 has "
                f"{list(layout.slots_per_rank)}"
            )
    for layer, ranks in enumerate(rows):
        _require_ids(layer, ranks)
    flat = [[expert for rank in ranks for expert in rank] for ranks in rows]
    return Placement(np.array(flat, dtype=np.int32), num_experts, layout, num_shared)


def _require_ids(layer: int, ranks: Sequence[Sequence[int]]) -> None:
    """Raise InvalidTable for what an array of 32-bit numbers would cut to size."""
    limits = np.iinfo(np.int32)
    for rank, experts in enumerate(ranks):
        found = np.array(experts)
        is_whole = not found.size or np.issubdtype(found.dtype, np.integer)
        if not is_whole or (found < limits.min).any() or (found > limits.max).any():
            raise InvalidTable(
                f"layer {layer}: rank {rank} holds {list(experts)[:20]}; expected whole numbers "
                "of 32 bits"
            )


def initial_placement(*, num_layers: int, num_experts: int, layout: SlotLayout) -> Placement:
    """Lay experts out flat, 0..E-1 and then from 0 again, as engines load checkpoints.

    Raises InvalidSettings where they do not fit, or a rank would hold one twice.

    >>> from eplb_service.domain.layout import SlotLayout
    >>> p = initial_placement(num_layers=1, num_experts=8, layout=SlotLayout((5, 5)))
    >>> p.phy2log.tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]]
    """
    if num_experts < 1:
        raise InvalidSettings(f"{num_experts} experts; expected at least one")
    if num_experts > layout.num_slots:
        raise InvalidSettings(
            f"{num_experts} experts do not fit into {layout.num_slots} slots; "
            f"{num_experts - layout.num_slots} more slots are needed"
        )
    if max(layout.slots_per_rank) > num_experts:
        raise InvalidSettings(
            f"{max(layout.slots_per_rank)} slots on one rank, but only {num_experts} experts; "
            "a rank holds no expert twice"
        )
    row = np.arange(layout.num_slots, dtype=np.int32) % num_experts
    return Placement(np.tile(row, (num_layers, 1)), num_experts, layout)
