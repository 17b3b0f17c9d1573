"""Random sound placements, for properties that must hold on all of them."""

from random import Random

import hypothesis.strategies as st
import numpy as np

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import EMPTY, Placement


def draw(seed: int) -> Placement:
    """Unequal ranks, empty slots, up to one replica per rank of any expert."""
    rng = Random(seed)
    layout = SlotLayout(tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 5))))
    num_experts = rng.randint(max(layout.slots_per_rank), layout.num_slots)
    rows = [_row(layout, num_experts, rng) for _ in range(rng.randint(1, 3))]
    return Placement(np.array(rows, dtype=np.int32), num_experts, layout)


def _row(layout: SlotLayout, num_experts: int, rng: Random) -> list[int]:
    row = [EMPTY] * layout.num_slots
    for expert, slot in enumerate(rng.sample(range(layout.num_slots), num_experts)):
        row[slot] = expert
    for slot, rank in enumerate(layout.rank_of_slot().tolist()):
        on_rank = row[layout.slots_of(rank)]
        spare = [expert for expert in range(num_experts) if expert not in on_rank]
        if row[slot] == EMPTY and spare and rng.random() < 0.8:
            row[slot] = rng.choice(spare)
    return row


sound_placements = st.integers(0, 2**32).map(draw)
