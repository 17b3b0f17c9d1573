"""The way between two placements: which slot keeps its expert, and who sends to whom.

Axes    L MoE layers   P slots   S slots of one rank   M transfers   N ranks
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from eplb_service.domain.errors import InvalidPlacement, InvalidTable
from eplb_service.domain.ids import FloatArray, IntArray
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.rules import require_fit
from eplb_service.domain.wave import SOURCE, TARGET

NOWHERE = -1


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
    layers, slots = np.nonzero(old.phy2log != new.phy2log)
    num_ranks = old.layout.num_ranks
    sizes = np.array(old.layout.slots_per_rank, dtype=np.intp)
    firsts = np.cumsum(sizes) - sizes
    touched = np.unique(layers * num_ranks + old.layout.rank_of_slot()[slots])
    for size in sorted({int(size) for size in sizes[touched % num_ranks]}):
        own = touched[sizes[touched % num_ranks] == size]
        cells = (own // num_ranks)[:, None], firsts[own % num_ranks][:, None] + np.arange(size)
        aligned[cells] = _align_rank(old.phy2log[cells], new.phy2log[cells])
    return Placement(aligned, new.num_experts, new.layout, new.num_shared)


def _align_rank(old: IntArray, new: IntArray) -> IntArray:
    """Align the slots [C, S] of ranks that have as many, each in one layer."""
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
    distance: FloatArray
    """[N, N] price of the way from a rank to another."""
    num_sends: dict[int, int] = field(default_factory=dict[int, int])

    def options(self, holders: Sequence[int], target: int) -> list[int]:
        """Source slots at the least distance; one alone where it is on the target's rank."""
        to = self.ranks[target]
        own = [slot for slot in holders if self.ranks[slot] == to]
        if own:
            return own[:1]
        ways = [float(self.distance[self.ranks[slot], to]) for slot in holders]
        return [slot for slot, way in zip(holders, ways, strict=True) if way == min(ways)]

    def pick(self, options: Sequence[int], target: int) -> int:
        """Return the source slot whose rank sends least so far."""
        source = min(options, key=lambda s: (self.num_sends.get(self.ranks[s], 0), s))
        if self.ranks[source] != self.ranks[target]:
            self.num_sends[self.ranks[source]] = self.num_sends.get(self.ranks[source], 0) + 1
        return source


def distance_of_nodes(nodes: Sequence[str], num_ranks: int) -> FloatArray:
    """[N, N] 0 between ranks of one node, else 1; 0 everywhere where nodes are not known.

    A node may be named with what it stands in, as `supernode/node`: the way out of each of
    these costs 1 more.

    >>> distance_of_nodes(["a", "a", "b"], 3).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    >>> distance_of_nodes(["s/a", "s/b", "t/a"], 3).tolist()
    [[0.0, 1.0, 2.0], [1.0, 0.0, 2.0], [2.0, 2.0, 0.0]]
    """
    distance = np.zeros((num_ranks, num_ranks))
    if not nodes:
        return distance
    levels = max(node.count("/") for node in nodes) + 1
    for depth in range(levels):
        names = np.array(["/".join(node.split("/")[: depth + 1]) for node in nodes])
        distance += names[:, None] != names[None, :]
    return distance


def transfers(
    old: Placement,
    new: Placement,
    *,
    nodes: Sequence[str] = (),
    distance: FloatArray | None = None,
    dead: Sequence[int] = (),
) -> IntArray:
    """List who sends what: [M, 4] layer, expert, source slot, target slot.

    nodes       [N] node of each rank
    distance    [N, N] price of the way from a rank to another, in the place of nodes
    dead        ranks that cannot send

    One row for each slot that gets another expert, by layer and target slot. A source
    holds its expert in `old`: a replica on the target's own rank first (copied within
    the rank, nothing goes over the wire), then the nearest, then the rank with the fewest
    sends so far, ties to the lower slot. Transfers that have no choice are counted first,
    so that the others go around the ranks that are busy with them. Raises InvalidPlacement
    when no slot of `old` that can send holds what is needed, InvalidTable for distances of
    another shape.
    """
    num_ranks = old.layout.num_ranks
    ways = distance_of_nodes(nodes, num_ranks) if distance is None else distance
    if ways.shape != (num_ranks, num_ranks):
        raise InvalidTable(
            f"distances have shape {list(ways.shape)}; expected {[num_ranks, num_ranks]}"
        )
    senders = _Senders(old.layout.rank_of_slot().tolist(), ways)
    wanted = list(_wanted(old, new, dead))
    choices = [senders.options(holders, target) for _, _, target, holders in wanted]
    sources = [NOWHERE] * len(wanted)
    for nth in sorted(range(len(wanted)), key=lambda n: (len(choices[n]) > 1, n)):
        sources[nth] = senders.pick(choices[nth], wanted[nth][2])
    listed = [
        (layer, expert, source, target)
        for (layer, expert, target, _), source in zip(wanted, sources, strict=True)
    ]
    return np.array(listed, dtype=np.int32).reshape(-1, 4)


def _wanted(
    old: Placement, new: Placement, dead: Sequence[int]
) -> Iterator[tuple[int, int, int, list[int]]]:
    """Layer, expert and slot of everything that is missing, with the slots that can send it."""
    sends = ~np.isin(old.layout.rank_of_slot(), dead)
    moved = (old.phy2log != new.phy2log) & (new.phy2log != EMPTY)
    for layer in np.flatnonzero(moved.any(axis=1)).tolist():
        holders = _holders(np.where(sends, old.phy2log[layer], EMPTY))
        targets: list[int] = np.flatnonzero(moved[layer]).tolist()
        for target in targets:
            expert = int(new.phy2log[layer, target])
            if expert not in holders:
                where = f", except on ranks {list(dead)}, which are dead" if len(dead) else ""
                raise InvalidPlacement(
                    f"layer {layer}: slot {target} needs expert {expert}, which no slot of the "
                    f"placement before holds{where}; nothing can send it"
                )
            yield layer, expert, target, holders[expert]


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


def busiest_transfers(moves: IntArray, placement: Placement) -> int:
    """Experts that the busiest rank sends, or receives, over the wire.

    moves    [M, 4] as transfers lists them
    """
    ranks = placement.layout.rank_of_slot()
    remote = moves[crosses_ranks(moves, placement)]
    if not len(remote):
        return 0
    return max(int(np.bincount(ranks[remote[:, side]]).max()) for side in (SOURCE, TARGET))
