"""A model whose shared experts sit in slots, told to the controller as what it is.

Axes    L layers   P slots   E routed experts   M shared experts in slots
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eplb_service.domain.errors import InvalidPlacement
from eplb_service.domain.layout import SlotLayout as DomainLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import shared_slots_stay, violations
from moe_runtime.runtime import (
    IN_SLOTS,
    Alone,
    Batch,
    ByGate,
    DenseReference,
    ExchangeMode,
    MoeRuntime,
    Phase,
    SlotLayout,
    Start,
    Step,
    StepKind,
    SyntheticModel,
    Traffic,
)
from moe_runtime.runtime.model import UNPACKED
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import tokens
from worker_agent.adapters.memory import DigestBook
from worker_agent.adapters.runtime import seat_of, served_by
from worker_agent.adapters.shared_slots import shared_slots

SHAPE = replace(stack_of(KINDS["softmax"]), num_layers=1, num_shared=2, shared_packing=IN_SLOTS)
E, M, SLOTS = SHAPE.num_experts, SHAPE.num_shared, SHAPE.num_experts + SHAPE.num_shared + 1
MODEL = SyntheticModel(SHAPE)


def serving(row: list[int]) -> MoeRuntime:
    held = np.array([row])
    table = np.array([[[row.index(e)] for e in range(E)]])
    shared = np.array([[row.index(E + m) for m in range(M)]])
    start = Start(SlotLayout((SLOTS,)), held, table, 1, shared_LM=shared)
    return MoeRuntime(MODEL, start, peers=Alone(), mode=ExchangeMode.ALL_TO_ALL)


def placement(*rows: list[int], slots: tuple[int, ...] = (SLOTS,)) -> Placement:
    return Placement(np.array(rows, dtype=np.int32), E, DomainLayout(slots), M)


FIRST = [*range(E + M), -1]
THEN = [-1, *reversed(range(E + M))]


def test_its_deployment_says_how_many_there_are_and_where_they_sit() -> None:
    seat = seat_of(serving(FIRST))
    assert seat.shape.num_shared == M
    told = served_by(seat, np.array([FIRST], dtype=np.int32))
    assert not violations(told)
    assert told.replica_count().tolist() == [[1] * E]
    assert list(shared_slots_stay(told, placement(THEN)))


def test_a_placement_is_loaded_with_their_slots_and_counts_them_apart() -> None:
    runtime = serving(FIRST)
    engine = seat_of(runtime).engine(DigestBook(), 0)
    table = np.array([[[THEN.index(e)] for e in range(E)]], dtype=np.int32)
    engine.load(placement(THEN), table)
    x_TD = tokens(SHAPE, 6, seed=1)
    out = runtime.forward(Batch.of(x_TD, ByGate(), Step(StepKind.REAL, Phase.DECODE)))
    right = DenseReference(MODEL).forward(x_TD, ByGate())
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-4)
    counted = engine.counters()
    assert counted.sent.sum() == 6 * SHAPE.selector.top_k
    routed = placement(THEN).routed()[0]
    assert counted.received[:, 0, ~routed].sum() == 6 * M
    assert counted.received[:, 0, routed].sum() == counted.sent.sum()


def test_f52_what_a_rank_had_no_place_for_is_told_to_the_controller() -> None:
    shape = replace(SHAPE, shared_packing=UNPACKED)
    row = [*range(E), -1]
    start = Start(SlotLayout((E + 1,)), [row], [[[e] for e in range(E)]], 1)
    traffic = Traffic(mode=ExchangeMode.FUSED_MC2, buffer_rows=2)
    runtime = MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=traffic)
    step = Step(StepKind.REAL, Phase.DECODE)
    runtime.forward(Batch.of(tokens(shape, 5, seed=1), ByGate(), step))
    told = seat_of(runtime).engine(DigestBook(), 0).counters()
    demand, capacity = 5 * shape.selector.top_k, 2 * shape.selector.top_k
    assert told.received.sum() == demand
    assert told.overflow_tokens == demand - capacity


def test_each_rank_uses_its_own_replica_and_the_others_in_turn() -> None:
    both = placement([8, 0, 1, 2, 8, 3, 9, 4, 5, 6, 7, -1], slots=(4, 4, 4))
    assert [shared_slots(both, rank).tolist() for rank in range(3)] == [
        [[0, 6]],
        [[4, 6]],
        [[0, 6]],
    ]


def test_a_shared_expert_without_a_slot_is_refused() -> None:
    with pytest.raises(InvalidPlacement, match="shared expert 1 has no slot"):
        shared_slots(placement([*range(E + 1), -1, -1]), 0)
