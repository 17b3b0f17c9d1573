"""Random placements in which shared experts have slots too, and one step on them.

Axes    L layers   P slots   N ranks   E routed experts   M shared experts   T tokens   D width
"""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from moe_runtime.runtime import (
    EMPTY,
    IN_SLOTS,
    Batch,
    ByGate,
    CounterSnapshot,
    ExchangeMode,
    MoeRuntime,
    Packing,
    Peers,
    Phase,
    SlotLayout,
    StackShape,
    Start,
    Step,
    StepKind,
    SyntheticModel,
    Traffic,
)
from moe_runtime.runtime.model import UNPACKED
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import IntArray, tokens

__all__ = ["DECODE", "MIXED", "ROUTED", "SHARED", "Mixed", "Served", "serve"]

DECODE = Step(StepKind.REAL, Phase.DECODE)
MIXED = replace(stack_of(KINDS["sigmoid corrected"]), num_shared=2, shared_packing=IN_SLOTS)
ROUTED, SHARED = MIXED.num_experts, MIXED.num_shared


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """A random placement in which every expert, shared ones included, has a slot somewhere."""

    layout: SlotLayout
    phy2log_LP: IntArray
    tables_NLEJ: IntArray
    shared_NLM: IntArray

    @staticmethod
    def drawn(shape: StackShape, slots: tuple[int, ...], *, seed: int) -> "Mixed":
        draw = np.random.default_rng(seed)
        layout, num_all = SlotLayout(slots), ROUTED + SHARED
        phy2log = np.empty((shape.num_layers, layout.num_slots), dtype=np.int64)
        tables = np.empty((len(slots), shape.num_layers, num_all, 1), dtype=np.int64)
        for layer, row in enumerate(phy2log):
            spare = draw.integers(num_all, size=layout.num_slots - num_all)
            spare[:1] = EMPTY
            row[:] = draw.permutation(np.concatenate([np.arange(num_all), spare]))
            for expert in range(num_all):
                homes = np.flatnonzero(row == expert)
                tables[:, layer, expert] = draw.choice(homes, size=(len(slots), 1))
        return Mixed(layout, phy2log, tables[:, :, :ROUTED], tables[:, :, ROUTED:, 0])

    def start(self, rank: int) -> Start:
        base = self.layout.base(rank)
        own = self.phy2log_LP[:, base : base + self.layout.slots_per_rank[rank]]
        return Start(self.layout, own, self.tables_NLEJ[rank], 4, shared_LM=self.shared_NLM[rank])


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    y_TD: Tensor
    counters: CounterSnapshot


def serve(
    peers: Peers,
    mixed: Mixed,
    rows_N: tuple[int, ...],
    traffic: ExchangeMode | Traffic,
    *,
    shape: StackShape = MIXED,
    packing: Packing = UNPACKED,
    are_alike: bool = False,
) -> Served:
    """Run one step; ranks that are alike have the same tokens."""
    model = SyntheticModel(shape, gates_shared=True)
    start = mixed.start(peers.rank)
    runtime = MoeRuntime(model, start, peers=peers, mode=traffic, packing=packing)
    seed = 0 if are_alike else peers.rank
    given = Batch.of(tokens(shape, rows_N[peers.rank], seed=seed), ByGate(), DECODE)
    return Served(runtime.forward(given), runtime.counters())
