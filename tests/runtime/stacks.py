"""Small stacks, random placements and random tokens for tests.

Axes    L layers   P slots of all ranks   E experts   J rows of a table   T tokens   D width
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.runtime import (
    EMPTY,
    LatentShape,
    Scoring,
    SelectorSettings,
    SiTU,
    SlotLayout,
    StackShape,
    Start,
)

__all__ = ["IntArray", "Layout", "kimi_like", "random_layout", "tokens"]

IntArray = npt.NDArray[np.int64]


def kimi_like(
    *, num_layers: int = 2, num_experts: int = 8, top_k: int = 3, width: int = 24
) -> StackShape:
    """Return Kimi K3's shape, made small."""
    return StackShape(
        num_layers=num_layers,
        width=width,
        intermediate=16,
        selector=SelectorSettings(
            num_experts=num_experts, top_k=top_k, scoring=Scoring.SIGMOID, factor=2.5
        ),
        activation=SiTU(),
        latent=LatentShape(12),
        num_shared=2,
        corrected=True,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A placement and every rank's dispatch tables."""

    slots: SlotLayout
    num_experts: int
    phy2log_LP: IntArray
    tables_NLEJ: IntArray

    def held(self, rank: int) -> IntArray:
        """Return [L, S] of one rank."""
        base = self.slots.base(rank)
        return self.phy2log_LP[:, base : base + self.slots.slots_per_rank[rank]]

    def start(self, rank: int, *, staging_rows: int = 2) -> Start:
        """Return what one rank starts with."""
        return Start(self.slots, self.held(rank), self.tables_NLEJ[rank], staging_rows)


def random_layout(
    shape: StackShape,
    slots_per_rank: tuple[int, ...],
    *,
    seed: int,
    num_empty: int = 0,
    num_choices: int = 1,
) -> Layout:
    """Place every expert at random, replicas of random experts in what is left, and empty slots."""
    draw = np.random.default_rng(seed)
    layout = SlotLayout(slots_per_rank)
    num_experts, num_ranks = shape.num_experts, layout.num_ranks
    phy2log = np.full((shape.num_layers, layout.num_slots), EMPTY, dtype=np.int64)
    tables = np.empty((num_ranks, shape.num_layers, num_experts, num_choices), dtype=np.int64)
    num_spare = layout.num_slots - num_experts - num_empty
    for layer in range(shape.num_layers):
        spare = draw.integers(num_experts, size=num_spare)
        held = np.concatenate([np.arange(num_experts), spare, np.full(num_empty, EMPTY)])
        phy2log[layer] = draw.permutation(held)
        for expert in range(num_experts):
            homes = np.flatnonzero(phy2log[layer] == expert)
            tables[:, layer, expert] = draw.choice(homes, size=(num_ranks, num_choices))
    return Layout(layout, num_experts, phy2log, tables)


def tokens(shape: StackShape, num_tokens: int, *, seed: int) -> Tensor:
    """Return random hidden states."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn((num_tokens, shape.width), generator=draw)
