# pyright: reportUnknownMemberType=false
# Off in this file only: torch leaves what compiles unannotated.
"""A layer as a graph: traced once, it follows numbers of tokens and placements as they come."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from moe_runtime.contracts.errors import StaleTable, UnplacedExpert, Unsupported
from moe_runtime.layer.parts import rms_norm
from moe_runtime.layer.traced import TracedLayer
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ExchangeMode,
    HashRouting,
    Install,
    MoeRuntime,
    Packing,
    Phase,
    Scoring,
    SelectorSettings,
    StackShape,
    Step,
    StepKind,
    SyntheticModel,
    WeightFormat,
    ZeroExpertRouting,
)
from moe_runtime.runtime.tracing import traced_layer
from tests.runtime.stacks import kimi_like, random_layout, tokens

Graph = Callable[[Tensor, Tensor, Tensor], Tensor]
SHAPE = kimi_like(num_layers=1)
DECODE = torch.tensor([0, 1])
"""Tokens of these steps are load of the second phase."""


def serving(
    shape: StackShape = SHAPE, weights: WeightFormat = WeightFormat.UNQUANTISED, *, choices: int = 1
) -> MoeRuntime:
    slots = (shape.num_experts + 2,)
    layout = random_layout(shape, slots, seed=1, num_empty=1, num_choices=choices)
    return MoeRuntime(
        SyntheticModel(shape),
        layout.start(0),
        peers=Alone(),
        mode=ExchangeMode.ALL_GATHER,
        dtype=torch.float64,
        packing=Packing(weights),
    )


def given(num_rows: int, shape: StackShape = SHAPE) -> tuple[Tensor, Tensor, Tensor]:
    x_TD = tokens(shape, num_rows, seed=num_rows).double()
    return x_TD, torch.arange(num_rows) % 3 != 1, DECODE


def eagerly(runtime: MoeRuntime, x_TD: Tensor, real_T: Tensor) -> Tensor:
    """What the runtime's own step gives, whose tokens are no load."""
    return runtime.forward(Batch(x_TD, real_T, ByGate(), Step(StepKind.WARMUP, Phase.DECODE)))


def through(graph: Graph, x_TD: Tensor, real_T: Tensor) -> Tensor:
    """The same by a graph of the stack's one layer."""
    y_TD = graph(rms_norm(x_TD), real_T, DECODE)
    return x_TD + y_TD


def agree(runtime: MoeRuntime, graph: Graph, num_rows: int, shape: StackShape = SHAPE) -> None:
    x_TD, real_T, _ = given(num_rows, shape)
    torch.testing.assert_close(
        through(graph, x_TD, real_T), eagerly(runtime, x_TD, real_T), rtol=1e-9, atol=1e-9
    )


def exported(traced: TracedLayer, shape: StackShape = SHAPE) -> Graph:
    rows = {0: torch.export.Dim("T", min=2, max=4096)}
    program = torch.export.export(
        traced, given(5, shape), dynamic_shapes=(rows, rows, None), strict=False
    )
    return program.module()


def move_first(runtime: MoeRuntime) -> None:
    """Move one expert to the empty slot, and send its tokens there."""
    held, table = runtime.held()[0], runtime.tables()[0]
    empty = int(np.flatnonzero(held < 0)[0])
    source = int(table[0, 0])
    for name, row in runtime.slots.staging_tensors(0).items():
        row.copy_(runtime.slots.expert_tensors(0, source)[name])
    held[empty], held[source], table[0] = 0, -1, empty
    runtime.install(0, [Install(empty, 0)], held)
    runtime.set_table(0, table)


@pytest.mark.slow
def test_an_exported_layer_follows_a_new_placement_and_counts_where_the_runtime_counts() -> None:
    runtime = serving()
    traced = traced_layer(runtime, 0)
    graph = exported(traced)
    for num_rows in (5, 9, 33):
        agree(runtime, graph, num_rows)
    before = runtime.counters()
    assert before.received_HLS[1].sum() == before.sent_HLE[1].sum() > 0
    assert before.received_HLS[0].sum() == 0
    empty = int(np.flatnonzero(runtime.held()[0] < 0)[0])
    assert before.received_HLS[1, 0, empty] == 0
    move_first(runtime)
    agree(runtime, graph, 33)
    after = runtime.counters()
    own = after.sent_HLE[1, 0, 0] - before.sent_HLE[1, 0, 0]
    assert after.received_HLS[1, 0, empty] == own > 0
    traced.refuse_faults()


@pytest.mark.slow
@pytest.mark.parametrize("weights", [WeightFormat.UNQUANTISED, WeightFormat.W8A8])
def test_a_compiled_layer_is_traced_once_for_all_token_counts_and_placements(
    weights: WeightFormat,
) -> None:
    runtime = serving(weights=weights, choices=2)
    counter = CompileCounter()
    graph = torch.compile(traced_layer(runtime, 0), backend=counter, dynamic=True, fullgraph=True)
    for num_rows in (5, 9, 2):
        agree(runtime, graph, num_rows)
    expert = runtime.tables()[0].copy()
    expert[0] = expert[0, 0]
    runtime.set_table(0, expert)
    move_first(runtime)
    agree(runtime, graph, 17)
    assert counter.frame_count == 1


def test_tokens_of_no_load_are_not_counted_and_padding_never_is() -> None:
    runtime = serving()
    traced = traced_layer(runtime, 0)
    x_TD, real_T, _ = given(6)
    traced(x_TD, real_T, torch.zeros_like(DECODE))
    assert runtime.counters().sent_HLE.sum() == 0
    out = traced(x_TD, real_T, DECODE)
    assert runtime.counters().sent_HLE.sum() == int(real_T.sum()) * SHAPE.selector.top_k
    assert bool((out[~real_T] == 0).all())


def test_zero_experts_give_tokens_back_and_are_counted_apart() -> None:
    among = SelectorSettings(num_experts=8, top_k=3, scoring=Scoring.SOFTMAX)
    routing = ZeroExpertRouting(among, 3)
    shape = replace(SHAPE, selector=routing, corrected=False)
    runtime = serving(shape)
    traced = traced_layer(runtime, 0)
    agree(runtime, traced, 12, shape)
    counted = runtime.counters()
    real = int(given(12, shape)[1].sum())
    assert counted.zero_HL[1, 0] > 0
    assert counted.zero_HL[1, 0] + counted.sent_HLE[1].sum() == 3 * real


@pytest.mark.parametrize("fault", [UnplacedExpert, StaleTable])
def test_what_a_graph_cannot_refuse_is_refused_after_its_run(
    fault: type[UnplacedExpert] | type[StaleTable],
) -> None:
    runtime = serving()
    traced = traced_layer(runtime, 0)
    x_TD, real_T, _ = given(40)
    traced(x_TD, real_T, DECODE)
    traced.refuse_faults()
    traced.table_EJ[0] = -1 if fault is UnplacedExpert else int(traced.table_EJ[1, 0])
    traced(x_TD, real_T, DECODE)
    with pytest.raises(fault):
        traced.refuse_faults()
    traced.refuse_faults()


def test_what_cannot_be_traced_is_refused_by_name() -> None:
    hashed = HashRouting(num_experts=8, top_k=3, vocabulary=10, scoring=Scoring.SIGMOID)
    shape = replace(SHAPE, selector=hashed, corrected=False)
    with pytest.raises(Unsupported, match="routing by token ids"):
        traced_layer(serving(shape), 0)
    with pytest.raises(Unsupported, match="biases of experts"):
        traced_layer(serving(replace(SHAPE, biased=True)), 0)
