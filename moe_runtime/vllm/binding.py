"""Loaded layers bound into one stack that computes them.

Axes    L layers   S local slots   P slots of all ranks   E experts   J rows of a table
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.layer.given import LayerMaths, RankState
from moe_runtime.layer.layer import MoELayer
from moe_runtime.layer.parts import Direct, LayerWeights
from moe_runtime.placement.counters import LoadCounters
from moe_runtime.placement.maps import DispatchTables, SlotLayout
from moe_runtime.placement.slots import ExpertSlots
from moe_runtime.routing.router import bind
from moe_runtime.vllm.capturing import Listening
from moe_runtime.vllm.families import CPU_PARTS, Parts
from moe_runtime.vllm.filling import Filler, initial_slots
from moe_runtime.vllm.grouping import passage_of
from moe_runtime.vllm.reading import Reading
from moe_runtime.vllm.stack import OwnedStack, Ranks, StackFacts

__all__ = ["Bound", "Loaded", "bind_stack", "even_tables", "fill_spare"]

Map = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """All MoE layers of a model, as they were loaded."""

    facts: StackFacts
    weights: Sequence[ExpertWeights]
    readings: Sequence[Reading]
    routers: Sequence[Listening]


@dataclass(frozen=True, slots=True)
class Bound:
    """A stack that serves where each expert was loaded."""

    stack: OwnedStack
    filler: Filler
    content_P: Map
    num_filled: int
    """Slots of this rank that were filled from others."""


def bind_stack(
    loaded: Loaded, ranks: Ranks, *, staging_rows: int, parts: Parts = CPU_PARTS
) -> Bound:
    """Bind layers into a stack, fill their spare slots and allocate staging rows. Collective."""
    facts, group = loaded.facts, ranks.group
    num_slots = next(iter(loaded.weights[0].named().values())).shape[0]
    layout = SlotLayout((num_slots,) * group.size)
    filler = Filler(ranks.hosts or group, layout)
    content_P = initial_slots(facts.num_experts, layout.num_slots)
    num_filled = fill_spare(filler, loaded.weights, content_P, facts.num_experts)
    content_LP = np.tile(content_P, (facts.num_layers, 1))
    base = layout.base(group.rank)
    state = RankState(
        ExpertSlots(
            loaded.weights,
            held_LS=content_LP[:, base : base + num_slots],
            staging_rows=staging_rows,
            num_experts=facts.num_experts,
        ),
        DispatchTables(
            even_tables(content_LP, facts.num_experts, ranks), layout=layout, home=parts.home
        ),
        LoadCounters(
            num_layers=facts.num_layers,
            num_slots=num_slots,
            num_experts=facts.num_experts,
            home=parts.home,
        ),
    )
    layers = [_layer(i, reading, state, parts) for i, reading in enumerate(loaded.readings)]
    passage = passage_of(layout, ranks, parts)
    stack = OwnedStack(facts, layout, ranks, layers, passage, loaded.routers)
    return Bound(stack, filler, content_P, num_filled)


def fill_spare(
    filler: Filler, weights: Sequence[ExpertWeights], content_P: Map, num_experts: int
) -> int:
    """Fill the slots beyond the first of each expert; only those were surely loaded. Collective.

    Returns how many slots of this rank were filled.
    """
    loaded_P = content_P.copy()
    loaded_P[num_experts:] = -1
    num_filled = 0
    for layer in weights:
        stacks = layer.named()
        for local_slot, tensors in filler.bring(stacks, loaded_P, content_P).items():
            num_filled += 1
            for name, tensor in tensors.items():
                stacks[name][local_slot].copy_(tensor)
    return num_filled


def even_tables(content_LP: Map, num_experts: int, ranks: Ranks) -> Map:
    """Return [L, E, J]: tokens spread evenly over replicas.

    By rank, or by row where ranks share rows.
    """
    num_rows = 12 if ranks.is_replicated else 1
    if ranks.is_replicated and ranks.group.size < 4:
        num_rows = (1, 2, 6)[ranks.group.size - 1]
    shift = 0 if ranks.is_replicated else ranks.group.rank
    places = [
        [np.flatnonzero(row_P == expert).tolist() for expert in range(num_experts)]
        for row_P in content_LP
    ]
    return np.array(
        [
            [[slots[(row + shift) % len(slots)] for row in range(num_rows)] for slots in layer]
            for layer in places
        ],
        dtype=np.int64,
    )


def _layer(index: int, reading: Reading, state: RankState, parts: Parts) -> MoELayer:
    maths = LayerMaths(reading.routing, reading.activation, parts.backend, parts.now)
    router = bind(reading.routing, reading.tensors, path=parts.gating(reading.routing))
    nothing = LayerWeights(torch.empty(0), reading.tensors, Direct(), ())
    return MoELayer(index, nothing, router, maths, state)
