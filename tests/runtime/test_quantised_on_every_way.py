"""Rows of every form, quantised before they are sent, through every way that a step can take.

What nobody may read is NaN: rows beyond the counts, empty slots, and padding rows of batches.
"""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.coding import FormCoder
from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.cpu_rows import dequantise
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.stages import Mc2Carry, Mc2HierarchyCarry, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind
from moe_runtime.exchange.blocks import UnevenRows
from moe_runtime.exchange.mc2 import Mc2Exchange
from moe_runtime.exchange.mc2_hierarchy import Mc2HierarchyExchange
from moe_runtime.exchange.peers import Peers, announce
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.runtime import (
    NO_TOKEN_IDS,
    Batch,
    ByGate,
    ExchangeMode,
    MoeRuntime,
    Nodes,
    OwnTokens,
    Packing,
    Replicated,
    Sharded,
    SyntheticModel,
    Traffic,
    WeightFormat,
)
from tests.runtime.oracle import Oracle, Want
from tests.runtime.stacks import Layout, kimi_like, random_layout, tokens
from tests.runtime.threads import run_threads

DECODE = Step(StepKind.REAL, Phase.DECODE)
SHAPE = replace(kimi_like(num_layers=1), latent=None, width=40, intermediate=24)
TEAM = 2
ROWS_G = (5, 2)
"""Tokens of each team; a rank with tokens of its own takes its part of them."""
FORMATS = {weights.rows: weights for weights in WeightFormat}
"""One format for each form of rows."""
WAYS = {
    "AllGather": Traffic(mode=ExchangeMode.ALL_GATHER),
    "All2All": Traffic(mode=ExchangeMode.ALL_TO_ALL),
    "MC2": Traffic(mode=ExchangeMode.MC2),
    "MC2, uneven": Traffic(mode=ExchangeMode.MC2, block_rows=UnevenRows(16)),
    "MC2, nodes": Traffic(mode=ExchangeMode.MC2, nodes=Nodes(2)),
    "fused MC2": Traffic(mode=ExchangeMode.FUSED_MC2),
    "fused MC2, overflowing": Traffic(mode=ExchangeMode.FUSED_MC2, buffer_rows=0),
    "AllGather, replicated": Traffic(mode=ExchangeMode.ALL_GATHER, spread=Replicated(TEAM)),
    "MC2, replicated": Traffic(mode=ExchangeMode.MC2, spread=Replicated(TEAM)),
    "fused MC2, sharded": Traffic(mode=ExchangeMode.FUSED_MC2, spread=Sharded(TEAM)),
}


def own_part(rank: int, traffic: Traffic) -> tuple[int, slice]:
    """Return a rank's team, and which of its tokens the rank brings."""
    team, place = divmod(rank, TEAM)
    match traffic.spread:
        case Replicated():
            return team, slice(None)
        case OwnTokens() | Sharded():
            first = (ROWS_G[team] + 1) // TEAM
            return team, slice(None, first) if place == 0 else slice(first, None)


@cache
def wanted(form: RowForm, team: int) -> tuple[Want, Want]:
    """Return what the format gives for a team's tokens, stage by stage and exactly."""
    oracle = Oracle(SyntheticModel(SHAPE), Packing(FORMATS[form]), torch.float32)
    x_TD = tokens(SHAPE, ROWS_G[team], seed=team)
    return oracle.staged(x_TD, NO_TOKEN_IDS), oracle.exact(x_TD, NO_TOKEN_IDS)


def one_table(layout: Layout) -> Layout:
    tables = layout.tables_NLEJ.copy()
    tables[1::TEAM] = tables[::TEAM]
    return replace(layout, tables_NLEJ=tables)


@pytest.mark.parametrize("form", RowForm)
@pytest.mark.parametrize("way", WAYS)
def test_every_form_comes_through_every_way(way: str, form: RowForm) -> None:
    traffic, packing = WAYS[way], Packing(FORMATS[form])
    layout = one_table(random_layout(SHAPE, (3, 2, 4, 3), seed=8, num_empty=2))

    def serve(peers: Peers) -> tuple[Tensor, int]:
        runtime = MoeRuntime(
            SyntheticModel(SHAPE),
            layout.start(peers.rank),
            peers=peers,
            mode=traffic,
            packing=packing,
        )
        team, part = own_part(peers.rank, traffic)
        x_TD = tokens(SHAPE, ROWS_G[team], seed=team)[part]
        nan = torch.full((1, SHAPE.width), float("nan"))
        real_T = torch.ones(len(x_TD) + 1, dtype=torch.bool)
        real_T[0] = False
        y_TD = runtime.forward(Batch(torch.cat((nan, x_TD)), real_T, ByGate(), DECODE))
        return y_TD[real_T], runtime.counters().overflow_rows

    ended = run_threads(serve, num_ranks=4)
    assert (sum(over for _, over in ended) > 0) is (way == "fused MC2, overflowing")
    for rank, (y_TD, _) in enumerate(ended):
        team, part = own_part(rank, traffic)
        for want in wanted(form, team):
            assert ((y_TD.double() - want.y_TD[part]).abs() <= want.within_TD[part]).all()


@dataclass(frozen=True, slots=True)
class Flat:
    def of(self, peers: Peers, coder: FormCoder) -> Mc2Exchange:
        return Mc2Exchange(peers, LAYOUT, CpuBackend(), coder)


@dataclass(frozen=True, slots=True)
class Hierarchical:
    def of(self, peers: Peers, coder: FormCoder) -> Mc2HierarchyExchange:
        return Mc2HierarchyExchange(peers, LAYOUT, CpuBackend(), 2, coder)


LAYOUT = SlotLayout((2, 1, 2, 1))


@pytest.mark.parametrize("form", RowForm)
@pytest.mark.parametrize("kind", [Flat(), Hierarchical()], ids=lambda kind: type(kind).__name__)
def test_rows_that_mc2_brings_are_the_senders_and_nan_beyond_the_counts(
    kind: Flat | Hierarchical, form: RowForm
) -> None:
    """Each row has a scale of its own, so that none can have another's."""
    rows_N = (3, 0, 2, 4)
    coder = FormCoder(CpuBackend(), form)
    x_NTZ = [torch.randn(n, 64) * 16.0 ** torch.arange(n)[:, None] for n in rows_N]
    slots_NTK = [((torch.arange(n) + rank) % 6)[:, None] for rank, n in enumerate(rows_N)]

    def dispatch(peers: Peers) -> tuple[Tensor, int]:
        rows, slots = rows_N[peers.rank], slots_NTK[peers.rank]
        view = announce(peers, DECODE, num_rows=rows)
        placed = Placed(
            x_NTZ[peers.rank], PhysicalIds(slots), LogicalIds(slots), torch.ones(rows, 1)
        )
        arrived = kind.of(peers, coder).dispatch(placed, view)
        assert isinstance(arrived.carry, Mc2Carry | Mc2HierarchyCarry)
        assert arrived.rows.form is form
        return dequantise(arrived.rows), int(arrived.counts.counts_S.sum())

    ended = run_threads(dispatch, num_ranks=4)
    order = torch.cat(slots_NTK)[:, 0].sort(stable=True).indices
    want = dequantise(coder.encode(torch.cat(x_NTZ)[order]))
    assert torch.equal(torch.cat([rows[:count] for rows, count in ended]), want)
    for rows, count in ended:
        assert len(rows) > count
        assert rows[count:].isnan().all()
