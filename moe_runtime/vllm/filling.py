"""Experts brought into slots before anything is served, whatever a loader left there.

Axes    L layers   P slots of all ranks   S local slots   E experts   B bytes of one expert

Collective over the group: for every slot that is to hold another expert, the first slot that
holds it sends it, with a digest by which the receiver verifies what came.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.contracts.errors import MoeError
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.exchange.peers import Peers
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.placement.slots import EMPTY, digest

__all__ = ["ContentLost", "Filler", "initial_slots"]

DIGEST_BYTES = 16
Slots = npt.NDArray[np.int64]


class ContentLost(MoeError):
    """What came into a slot is not what was sent."""

    code = "content_lost"


def initial_slots(num_experts: int, num_slots: int) -> Slots:
    """Return [P]: what vLLM's loaders put into each slot, and into the spare ones at the end.

    >>> initial_slots(4, 6).tolist()
    [0, 1, 2, 3, 0, 1]
    """
    return np.arange(num_slots, dtype=np.int64) % num_experts


@dataclass(frozen=True, slots=True)
class Filler:
    """Brings experts over the group."""

    peers: Peers
    layout: SlotLayout

    def bring(
        self, stacks: Mapping[str, Tensor], old_P: Slots, new_P: Slots
    ) -> dict[int, dict[str, Tensor]]:
        """Return the tensors of every expert that comes to this rank, by its local slot.

        stacks    the layer's live tensors, [S, ...]; nothing is written to them
        old_P     what each slot holds now, -1 where nothing that can be relied on

        Raises ContentLost, and KeyError if no slot holds an expert that is wanted.
        """
        me, ranks = self.peers.rank, self._rank_of_slot()
        held = [int(expert) for expert in old_P]
        home = {held[slot]: slot for slot in reversed(range(len(held)))}
        moves = [
            (home[int(new_P[slot])], slot)
            for slot in np.flatnonzero((old_P != new_P) & (new_P != EMPTY)).tolist()
        ]
        sent = [[m for m in moves if ranks[m[0]] == me and ranks[m[1]] == to] for to in self._all]
        coming = [[m for m in moves if ranks[m[0]] == by and ranks[m[1]] == me] for by in self._all]
        base = self.layout.base(me)
        rows = [_packed(stacks, source - base) for group in sent for source, _ in group]
        width = sum(s[0].numel() * s.element_size() for s in stacks.values()) + DIGEST_BYTES
        outgoing = torch.stack(rows) if rows else torch.empty((0, width), dtype=torch.uint8)
        arrived = self.peers.all_to_all(
            outgoing, [len(group) for group in sent], [len(group) for group in coming]
        )
        targets = [target for group in coming for _, target in group]
        return {
            target - base: _unpacked(stacks, row, slot=target)
            for target, row in zip(targets, arrived, strict=True)
        }

    def gather_held(self, held_LS: Slots) -> Slots:
        """Return [L, P]: what the slots of all ranks hold. Collective."""
        columns = torch.tensor(held_LS.T.copy())
        rows_N = list(self.layout.slots_per_rank)
        return self.peers.all_gather(columns, rows_N).numpy().T.copy()

    @property
    def _all(self) -> range:
        return range(self.peers.size)

    def _rank_of_slot(self) -> list[int]:
        return [rank for rank, n in enumerate(self.layout.slots_per_rank) for _ in range(n)]


def _packed(stacks: Mapping[str, Tensor], local_slot: int) -> Tensor:
    """Return uint8 [B + 16]: every tensor of a slot by name, then its digest."""
    tensors = {name: stack[local_slot] for name, stack in stacks.items()}
    parts = [tensors[name].contiguous().reshape(-1).view(torch.uint8) for name in sorted(tensors)]
    mark = torch.frombuffer(bytearray(digest(tensors)), dtype=torch.uint8)
    return torch.cat([part.cpu() for part in parts] + [mark])


def _unpacked(stacks: Mapping[str, Tensor], row: Tensor, *, slot: int) -> dict[str, Tensor]:
    names = sorted(stacks)
    sizes = [stacks[name][0].numel() * stacks[name].element_size() for name in names]
    *parts, mark = split_rows(row, [*sizes, DIGEST_BYTES])
    tensors = {
        name: part.clone().view(stacks[name].dtype).view_as(stacks[name][0])
        for name, part in zip(names, parts, strict=True)
    }
    if digest(tensors) != mark.numpy().tobytes():
        raise ContentLost(f"what came into slot {slot} is not what was sent; nothing is served")
    return tensors
