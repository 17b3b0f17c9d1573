"""Random sound placements, for properties of moves, waves, policies and plans."""

from collections.abc import Sequence
from random import Random

import numpy as np
from hypothesis import strategies as st

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import EMPTY, Placement

GRID = ((2, 1, 2, 3), (2, 2, 3, 4), (2, 4, 8, 16), (4, 1, 2, 6), (4, 2, 2, 5), (4, 8, 8, 16))
"""Ranks, layers, slots per rank, experts: the grid of vLLM's own migration tests."""


def random_placement(
    rng: Random, *, num_layers: int, num_experts: int, slots_per_rank: Sequence[int]
) -> Placement:
    """Draw a sound placement; slots that no expert fits, and some others, stay empty."""
    layout = SlotLayout(tuple(slots_per_rank))
    rows = [_row(rng, num_experts, slots_per_rank) for _ in range(num_layers)]
    return Placement(np.array(rows, dtype=np.int32), num_experts, layout)


def _row(rng: Random, num_experts: int, slots_per_rank: Sequence[int]) -> list[int]:
    ranks: list[list[int]] = [[] for _ in slots_per_rank]
    for expert in rng.sample(range(num_experts), num_experts):
        with_room = [r for r, s in enumerate(slots_per_rank) if len(ranks[r]) < s]
        ranks[rng.choice(with_room)].append(expert)
    for own, size in zip(ranks, slots_per_rank, strict=True):
        others = [e for e in range(num_experts) if e not in own]
        rng.shuffle(others)
        while len(own) < size:
            own.append(others.pop() if others and rng.random() < 0.8 else EMPTY)
        rng.shuffle(own)
    return [expert for own in ranks for expert in own]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Placement, Placement]:
    """Two sound placements of one deployment, ranks of unequal slots among them."""
    slots = draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    num_experts = draw(st.integers(1, sum(slots)))
    num_layers = draw(st.integers(1, 3))
    rng = Random(draw(st.integers(0, 2**32)))
    old, new = (
        random_placement(rng, num_layers=num_layers, num_experts=num_experts, slots_per_rank=slots)
        for _ in range(2)
    )
    return old, new
