"""An owned stack of vLLM's MoE layers as an engine."""

import numpy as np

from eplb_service.domain.deployment import ModelShape
from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership
from moe_runtime.vllm import OwnedModel, place
from worker_agent.adapters.chunked_mover import DeviceLink
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
        owned = self._owned
        place(owned.stack, owned.filler, placement.phy2log.astype(np.int64), table)


def seat_of(owned: OwnedModel) -> Seat:
    """Return the seat of a loaded model of vLLM."""
    stack, moving = owned.stack, owned.moving
    is_replicated = stack.ranks.is_replicated
    return Seat(
        stack,
        ModelShape(
            layers=tuple(range(stack.facts.num_layers)),
            num_experts=stack.facts.num_experts,
            num_shared=0,
            top_k=stack.facts.top_k,
            bytes_per_expert=owned.memory.per_expert,
            num_groups=stack.facts.num_groups,
        ),
        engine=lambda book, rank: VllmEngine(owned, book, rank=rank),
        adapter="vllm",
        link=None if moving is None else DeviceLink(moving.group, moving.home, moving.lane),
        ownership=Ownership.REPLICATED if is_replicated else Ownership.OWN,
    )
