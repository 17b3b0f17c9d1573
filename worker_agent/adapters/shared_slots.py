"""Which slot a rank uses for each shared expert of a placement.

Axes    L layers   M shared experts that sit in slots
"""

import numpy as np

from eplb_service.domain.errors import InvalidPlacement
from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import Placement

__all__ = ["shared_slots"]


def shared_slots(placement: Placement, rank: int) -> IntArray:
    """Return [L, M]: where a rank's tokens find each shared expert in slots.

    Its own slot where it has one, so that nothing travels; else the ranks in turn. Raises
    InvalidPlacement for one that has no slot.
    """
    chosen = np.empty((placement.num_layers, placement.num_shared), dtype=np.int32)
    own = placement.layout.slots_of(rank)
    for layer, phy2log in enumerate(placement.phy2log):
        for number in range(placement.num_shared):
            homes = np.flatnonzero(phy2log == placement.num_experts + number)
            if not homes.size:
                raise InvalidPlacement(
                    f"layer {layer}: shared expert {number} has no slot; nothing was loaded"
                )
            at_home = homes[(homes >= own.start) & (homes < own.stop)]
            chosen[layer, number] = at_home[0] if at_home.size else homes[rank % homes.size]
    return chosen
