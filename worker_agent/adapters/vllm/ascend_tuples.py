"""Orders as the tuples that vllm-ascend's loader expects, and its maps as placements.

Axes    L layers   N ranks   S local slots   P slots of all ranks   E experts
"""

from typing import TypeAlias

import numpy as np
from torch import Tensor

from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.wave import LAYER, SOURCE, TARGET, Order
from worker_agent.adapters.vllm.foreign import Counts, ForeignShape

__all__ = ["LayerUpdate", "Move", "contents_of", "maps_of", "moves_of", "updates_of"]

Move = tuple[int, int]
"""The other rank, in the expert-parallel group, and the expert."""
LayerUpdate: TypeAlias = tuple[list[Move], list[Move], list[int], list[int], int]
"""What is sent, what is received, local slot or -1 of each expert, slot that this rank sends each
expert's tokens to, layer."""


def contents_of(maps: Tensor, num_slots: int) -> Counts:
    """Return [L, P] from the loop's own maps [L, N, E], local slot or -1."""
    table = maps.numpy().astype(np.int64)
    found = np.full((*table.shape[:2], num_slots), -1, dtype=np.int64)
    layers, ranks, experts = np.nonzero(table >= 0)
    found[layers, ranks, table[layers, ranks, experts]] = experts
    return found.reshape(table.shape[0], -1)


def maps_of(placement: Placement, like: Tensor) -> Tensor:
    """Return [L, N, E] of a placement, as the loop writes it."""
    maps = like.new_full(like.shape, -1)
    num_slots = placement.layout.slots_per_rank[0]
    for layer, row in enumerate(placement.phy2log.tolist()):
        for slot, expert in enumerate(row):
            maps[layer, slot // num_slots, expert] = slot % num_slots
    return maps


def updates_of(order: Order, after: Placement, shape: ForeignShape) -> dict[int, LayerUpdate]:
    """Return this rank's tuple of each changed layer; all ranks list moves in one order."""
    me, num_slots = shape.rank, shape.num_slots
    found: dict[int, LayerUpdate] = {}
    for index, layer in enumerate(order.content.layers.tolist()):
        moves = order.content.transfers[order.content.transfers[:, LAYER] == layer]
        sent, received = moves_of(moves, me, num_slots)
        own = after.phy2log[layer, me * num_slots : (me + 1) * num_slots].tolist()
        held = [-1] * shape.num_experts
        for local_slot, expert in enumerate(own):
            held[expert] = local_slot
        targets: list[int] = order.dispatch[index][:, 0].tolist()
        found[layer] = (sent, received, held, targets, layer)
    return found


def moves_of(moves: IntArray, me: int, num_slots: int) -> tuple[list[Move], list[Move]]:
    """Return what this rank sends and receives, of [m, 4] transfers.

    >>> moves_of(np.array([[0, 7, 1, 2], [0, 5, 3, 0]]), 0, 2)
    ([(1, 7)], [(1, 5)])
    """
    sent: list[Move] = []
    received: list[Move] = []
    for row in moves.tolist():
        expert, by, to = row[1], row[SOURCE] // num_slots, row[TARGET] // num_slots
        if by == me:
            sent.append((to, expert))
        if to == me:
            received.append((by, expert))
    return sent, received
