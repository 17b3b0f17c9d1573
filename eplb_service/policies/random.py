"""Moving for the sake of moving; looks at no heat."""

import numpy as np

from eplb_service.domain.placement import Placement
from eplb_service.policies.masking import on_active_ranks
from eplb_service.policies.request import PolicyRequest
from eplb_service.policies.rows import aligned, ranks_of, row_of


@on_active_ranks
def random(request: PolicyRequest) -> Placement:
    """Draw a sound placement from the seed; for forced rebalancing in tests.

    Slots are drawn one after another until `max_moves` have changed; each draw keeps
    every expert placed and none twice on a rank.
    """
    rng = np.random.default_rng(request.seed)
    phy2log = request.placement.phy2log.copy()
    left = phy2log.size if request.max_moves is None else request.max_moves
    for layer in request.layers:
        ranks = ranks_of(phy2log[layer], request.placement)
        left -= _shuffle(ranks, request.placement.num_experts, left, rng)
        phy2log[layer] = row_of(ranks, phy2log[layer], request.placement)
    return aligned(request, phy2log)


def _shuffle(ranks: list[list[int]], num_experts: int, left: int, rng: np.random.Generator) -> int:
    """Swap, or replace where another replica remains, at every slot; return the moves spent."""
    held = np.bincount([e for experts in ranks for e in experts], minlength=num_experts)
    slots = [(rank, at) for rank, experts in enumerate(ranks) for at in range(len(experts))]
    spent = 0
    order: list[int] = rng.permutation(len(slots)).tolist()
    for number in order:
        rank, at = slots[number]
        other, there = slots[int(rng.integers(len(slots)))]
        out, into = ranks[rank][at], ranks[other][there]
        if into in ranks[rank]:
            continue
        if held[out] > 1 and spent < left:
            held[out] -= 1
            held[into] += 1
            ranks[rank][at] = into
            spent += 1
        elif out not in ranks[other] and spent + 1 < left:
            ranks[rank][at], ranks[other][there] = into, out
            spent += 2
    return spent
