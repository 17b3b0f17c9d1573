"""What would be left of a placement without some of its ranks."""

from collections.abc import Collection

import numpy as np

from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import Placement


def only_on(placement: Placement, ranks: Collection[int]) -> IntArray:
    """Return [M, 2]: layer and expert of every expert with no replica on any other rank."""
    is_there = ~np.isin(placement.layout.rank_of_slot(), list(ranks))
    num_experts = placement.num_experts + placement.num_shared
    held = np.zeros((placement.num_layers, num_experts), dtype=np.bool_)
    layers, slots = np.nonzero((placement.phy2log >= 0) & is_there)
    held[layers, placement.phy2log[layers, slots]] = True
    return np.argwhere(~held[:, : placement.num_experts]).astype(np.int32)
