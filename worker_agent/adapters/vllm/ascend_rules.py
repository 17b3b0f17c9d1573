"""What vllm-ascend's loop would carry out wrongly, and without a word.

It moves weights between ranks only: an expert that changes its slot within a rank would end in a
map that names a slot which holds something else. And it knows no empty slot.

Axes    L layers   N ranks   S local slots   E experts
"""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.wave import Order
from worker_agent.adapters.vllm.foreign import ForeignShape

__all__ = ["load_fault", "order_fault"]


def order_fault(order: Order, served: Placement) -> str | None:
    """Say why the loop cannot carry an order out on what is served; None where it can."""
    after = order.content.apply(served)
    return next(_faults(served, after, order), None)


def load_fault(maps: Tensor, shape: ForeignShape) -> list[str]:
    """Say what is wrong with the loop's own maps [L, N, E] to begin with."""
    held = (maps >= 0).sum(dim=2)
    if bool((held == shape.num_slots).all()):
        return []
    layer, rank = np.argwhere((held != shape.num_slots).numpy())[0].tolist()
    return [
        f"layer {layer} has {int(held[layer, rank])} different experts on rank {rank}, which has "
        f"{shape.num_slots} slots; expected as many, since its map holds an expert once"
    ]


def _faults(served: Placement, after: Placement, order: Order) -> Iterator[str]:
    if order.dispatch.shape[2] != 1:
        yield (
            f"the dispatch table has {order.dispatch.shape[2]} rows; vllm-ascend's has one, the "
            "slot to which a rank sends all tokens of an expert"
        )
    for layer in order.content.layers.tolist():
        for rank in range(after.layout.num_ranks):
            own = after.layout.slots_of(rank)
            old, new = served.phy2log[layer, own], after.phy2log[layer, own]
            where = f"layer {layer}, rank {rank}"
            if np.any(new == EMPTY):
                yield f"{where}: slot {int(np.argmax(new == EMPTY))} is left empty"
            moved = [int(e) for e in np.intersect1d(old, new) if _at(old, e) != _at(new, e)]
            if moved:
                yield (
                    f"{where}: experts {moved} change their slots within the rank, which "
                    "vllm-ascend's loop notes in its map and does not do"
                )


def _at(row: np.ndarray[tuple[int, ...], np.dtype[np.int32]], expert: int) -> int:
    return int(np.flatnonzero(row == expert)[0])
