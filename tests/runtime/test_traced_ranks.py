# pyright: reportUnknownMemberType=false
# Off in this file only: torch leaves what compiles unannotated.
"""A layer of two ranks as a graph: traced once, its exchange with it."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from moe_runtime.contracts.errors import StaleTable, Unsupported
from moe_runtime.layer.parts import rms_norm
from moe_runtime.runtime import (
    Alone,
    ByGate,
    DenseReference,
    ExchangeMode,
    GroupPeers,
    MoeRuntime,
    SyntheticModel,
)
from moe_runtime.runtime.tracing import traced_layer
from tests.runtime.ranks import run_ranks
from tests.runtime.stacks import kimi_like, random_layout, tokens
from tests.runtime.test_formats_move import move_to

SHAPE = kimi_like(num_layers=1)
FIRST, THEN = (random_layout(SHAPE, (6, 5), seed=seed, num_empty=1) for seed in (1, 2))
DECODE = torch.tensor([0, 1])
Way = Literal["export", "compile"]
Graph = Callable[[Tensor, Tensor, Tensor], Tensor]


def serving(rank: int) -> MoeRuntime:
    return MoeRuntime(
        SyntheticModel(SHAPE),
        FIRST.start(rank, staging_rows=6),
        peers=GroupPeers(),
        mode=ExchangeMode.ALL_GATHER,
        dtype=torch.float64,
    )


def given(rank: int, num_rows: int, num_real: int) -> tuple[Tensor, Tensor]:
    x_TD = tokens(SHAPE, num_rows, seed=10 * num_rows + rank).double()
    return x_TD, torch.arange(num_rows) < num_real


def through(graph: Graph, x_TD: Tensor, real_T: Tensor) -> Tensor:
    y_TD = graph(rms_norm(x_TD), real_T, DECODE)
    return torch.where(real_T[:, None], x_TD + y_TD, 0)


def off(graph: Graph, rank: int, num_rows: int, num_real: int) -> float:
    x_TD, real_T = given(rank, num_rows, num_real)
    right = DenseReference(SyntheticModel(SHAPE)).forward(x_TD[real_T], ByGate())
    got = through(graph, x_TD, real_T)[real_T]
    return float((got - right).abs().max()) if right.numel() else 0.0


def run(rank: int, way: Way) -> tuple[float, int, int, int]:
    runtime = serving(rank)
    traced = traced_layer(runtime, 0, group=dist.group.WORLD)
    counter = CompileCounter()
    if way == "export":
        rows = {0: torch.export.Dim("T", min=2, max=4096)}
        x_TD, real_T = given(rank, 5, 4)
        shapes = (rows, rows, None)
        program = torch.export.export(
            traced, (x_TD, real_T, DECODE), dynamic_shapes=shapes, strict=False
        )
        graph = program.module()
    else:
        graph = torch.compile(traced, backend=counter, dynamic=True, fullgraph=True)
    # Not as many rows as anything else has: a tracer takes equal sizes for one.
    worst = max(off(graph, rank, *rows) for rows in ((7, 4 - rank), (9, 9), (6, 3 * rank)))
    move_to(runtime, THEN, rank, set())
    worst = max(worst, off(graph, rank, 13, 5))
    traced.refuse_faults()
    counted = runtime.counters()
    return (
        worst,
        int(counted.received_HLS[1].sum()),
        int(counted.sent_HLE[1].sum()),
        (counter.frame_count),
    )


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("way", ["export", "compile"])
def test_a_graph_of_two_ranks_follows_tokens_and_placements(way: Way) -> None:
    """Uneven tokens behind equal rows, a rank without tokens, and a move between two runs."""
    ended = run_ranks(run, way, num_ranks=2, deadline_s=100)
    assert max(worst for worst, _, _, _ in ended) < 1e-6
    assert sum(received for _, received, _, _ in ended) == sum(sent for _, _, sent, _ in ended)
    assert all(frames == (way == "compile") for _, _, _, frames in ended)


def stale(rank: int, _: object) -> str:
    runtime = serving(rank)
    traced = traced_layer(runtime, 0, group=dist.group.WORLD)
    traced.table_EJ[:] = traced.table_EJ.roll(1, dims=0)
    traced(*given(rank, 12, 12), DECODE)
    try:
        traced.refuse_faults()
    except StaleTable as told:
        return str(told)
    return ""


@pytest.mark.slow
@pytest.mark.processes
def test_a_stale_table_is_told_by_the_rank_whose_slots_it_names() -> None:
    for rank, told in enumerate(run_ranks(stale, None, num_ranks=2, deadline_s=100)):
        assert f"layer 0, rank {rank}" in told


def refused(rank: int, _: object) -> list[str]:
    runtime = serving(rank)
    told: list[str] = []
    try:
        traced_layer(runtime, 0)
    except Unsupported as refusal:
        told.append(str(refusal))
    direct = MoeRuntime(
        SyntheticModel(SHAPE),
        FIRST.start(rank),
        peers=GroupPeers(),
        mode=ExchangeMode.ALL_TO_ALL,
    )
    try:
        traced_layer(direct, 0, group=dist.group.WORLD)
    except Unsupported as refusal:
        told.append(str(refusal))
    return told


@pytest.mark.slow
@pytest.mark.processes
def test_what_has_sizes_that_tokens_choose_is_refused_by_name() -> None:
    for first, second in run_ranks(refused, None, num_ranks=2, deadline_s=100):
        assert "2 ranks exchange, and the group to trace over has 1" in first
        assert "only AllGather has sizes that do not follow from what tokens chose" in second


def test_a_rank_alone_needs_no_group() -> None:
    start = random_layout(SHAPE, (10,), seed=1).start(0)
    runtime = MoeRuntime(SyntheticModel(SHAPE), start, peers=Alone(), mode=ExchangeMode.ALL_TO_ALL)
    x_TD = tokens(SHAPE, 4, seed=1)
    out = traced_layer(runtime, 0)(x_TD, torch.ones(4, dtype=torch.bool), DECODE)
    assert out.shape == x_TD.shape
