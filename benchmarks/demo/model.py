"""The model of the demo and where its experts lie at the start.

Axes    L MoE layers   E experts   S local slots   J rows of a dispatch table
"""

from benchmarks.counts import TOP_K
from moe_runtime.runtime import (
    LatentShape,
    Scoring,
    SelectorSettings,
    SiTU,
    SlotLayout,
    StackShape,
    Start,
)

__all__ = ["AGREE_EVERY", "BYTES_PER_EXPERT", "NUM_EXPERTS", "NUM_LAYERS", "SHAPE", "flat_start"]

NUM_LAYERS = 3
NUM_EXPERTS = 64
"""Layers and experts of the sample counts, so that each layer replays one of theirs."""

SHAPE = StackShape(
    num_layers=NUM_LAYERS,
    width=48,
    intermediate=20,
    selector=SelectorSettings(
        num_experts=NUM_EXPERTS, top_k=TOP_K, scoring=Scoring.SIGMOID, factor=2.5
    ),
    activation=SiTU(),
    latent=LatentShape(24),
    num_shared=2,
    corrected=True,
)
"""Kimi K3's stages and proportions, at a size that two cores serve eight times over."""

BYTES_PER_EXPERT = 3 * SHAPE.routed_width * SHAPE.intermediate * 4
"""Gate, up and down projection in float32."""

AGREE_EVERY = 4
"""Steps from one agreement of the ranks to the next; agents and controller are told the same."""


def flat_start(layout: SlotLayout, rank: int, *, staging_rows: int) -> Start:
    """Return what a rank serves before anything was balanced.

    Slot p holds expert p modulo E, as vLLM lays out a checkpoint; a rank uses the replica that
    its own number picks, in slot order.
    """
    base, num_slots = layout.base(rank), layout.slots_per_rank[rank]
    held_S = [slot % NUM_EXPERTS for slot in range(base, base + num_slots)]
    table_EJ: list[list[int]] = []
    for expert in range(NUM_EXPERTS):
        slots = range(expert, layout.num_slots, NUM_EXPERTS)
        table_EJ.append([slots[rank % len(slots)]])
    return Start(layout, [held_S] * NUM_LAYERS, [table_EJ] * NUM_LAYERS, staging_rows)
