"""An owned stack of vLLM's MoE layers as an engine.

Axes    L layers   P slots of all ranks   S local slots
"""

import numpy as np

from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.shares import Ownership
from moe_runtime.vllm import Install, OwnedModel
from worker_agent.adapters.memory import DigestBook
from worker_agent.adapters.runtime import Seat, SlotsEngine


class VllmEngine(SlotsEngine):
    """An engine whose experts lie in the slots of its ranks and nowhere else."""

    def __init__(self, owned: OwnedModel, book: DigestBook, *, rank: int) -> None:
        super().__init__(owned.stack, book, rank=rank)
        self._owned = owned

    def load(self, placement: Placement, table: IntArray) -> None:
        """Bring the experts of a placement from the ranks that hold them. Collective.

        Every rank holds, before, what vLLM's loader and the filling of spare slots left.
        """
        stack, filler = self._owned.stack, self._owned.filler
        old = filler.gather_held(stack.held())
        new = placement.phy2log.astype(np.int64)
        own = placement.layout.slots_of(self._rank)
        for layer in range(len(new)):
            stacks = stack.slots.weights(layer).named()
            arrived = filler.bring(stacks, old[layer], new[layer])
            held = old[layer, own].copy()
            emptied = new[layer, own] == EMPTY
            held[emptied] = EMPTY
            for local_slot, tensors in arrived.items():
                staging = stack.slots.staging_tensors(0)
                for name, tensor in tensors.items():
                    staging[name].copy_(tensor)
                held[local_slot] = new[layer, own][local_slot]
                stack.install(layer, [Install(local_slot, 0)], held)
            stack.install(layer, [], held)
            stack.set_table(layer, table[layer])


def seat_of(owned: OwnedModel) -> Seat:
    """Return the seat of a loaded model of vLLM."""
    stack = owned.stack
    is_replicated = stack.ranks.is_replicated
    return Seat(
        stack,
        num_layers=stack.facts.num_layers,
        num_experts=stack.facts.num_experts,
        top_k=stack.facts.top_k,
        bytes_per_expert=owned.bytes_per_expert,
        engine=lambda book, rank: VllmEngine(owned, book, rank=rank),
        adapter="vllm",
        ownership=Ownership.REPLICATED if is_replicated else Ownership.OWN,
    )
