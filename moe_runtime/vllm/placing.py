"""A placement put in use while nothing is served: at a start, and around a reload of weights.

Axes    L layers   P slots of all ranks   S local slots   E experts   J rows of a table
"""

import numpy as np
import numpy.typing as npt

from moe_runtime.placement.slots import EMPTY, Install
from moe_runtime.vllm.filling import Filler, Slots
from moe_runtime.vllm.stack import OwnedStack

__all__ = ["place"]


def place(stack: OwnedStack, filler: Filler, new_LP: Slots, tables_LEJ: npt.ArrayLike) -> None:
    """Bring every slot to its new content from the ranks that hold it, and set this rank's tables.

    Collective over the group; no forward may run meanwhile. Raises what `Filler.bring` raises.
    """
    base, num_own = stack.layout.base(stack.ranks.group.rank), stack.slots.num_slots
    old_LP = filler.gather_held(stack.held())
    for layer, table_EJ in enumerate(np.asarray(tables_LEJ)):
        own = new_LP[layer, base : base + num_own]
        stacks = stack.slots.weights(layer).named()
        held = np.where(own == EMPTY, EMPTY, old_LP[layer, base : base + num_own])
        for local_slot, tensors in filler.bring(stacks, old_LP[layer], new_LP[layer]).items():
            staging = stack.slots.staging_tensors(0)
            for name, tensor in tensors.items():
                staging[name].copy_(tensor)
            held[local_slot] = own[local_slot]
            stack.install(layer, [Install(local_slot, 0)], held)
        stack.install(layer, [], held)
        stack.set_table(layer, table_EJ)
