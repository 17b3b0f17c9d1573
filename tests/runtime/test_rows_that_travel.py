"""What is sent arrives whole: every part of a row, in every dtype, and for whom it is told."""

from dataclasses import replace
from threading import BrokenBarrierError

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.backends.coding import FormCoder
from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.cpu_rows import dequantise
from moe_runtime.contracts.errors import StaleTable, UnreadableRows
from moe_runtime.contracts.ids import SEVERAL, UNCLAIMED, LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import Int8Rows, RowForm
from moe_runtime.contracts.stages import Dispatched, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.exchange.all_gather import AllGatherExchange
from moe_runtime.exchange.all_to_all import AllToAllExchange
from moe_runtime.exchange.parcels import pack
from moe_runtime.exchange.peers import Peers, announce
from moe_runtime.exchange.places import claims
from moe_runtime.experts.activations import SwiGLU
from moe_runtime.experts.mlp import compute_grouped
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.runtime import Batch, ByGate, ExchangeMode, MoeRuntime, SyntheticModel
from tests.runtime.stacks import kimi_like, random_layout, tokens
from tests.runtime.threads import ThreadPeers, run_threads

MODES = [AllGatherExchange, AllToAllExchange]


CODER = FormCoder(CpuBackend(), RowForm.INT8)


@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_a_parcel_is_taken_apart_as_it_was_packed(num_rows: int) -> None:
    wide = torch.randn(num_rows, 3)
    parts = (wide, torch.arange(num_rows), wide.to(torch.float8_e4m3fn), wide.to(torch.bfloat16))
    packed, parcel = pack(parts)
    for part, back in zip(parts, parcel.unpack(packed), strict=True):
        assert part.dtype == back.dtype
        assert part.shape == back.shape
        assert torch.equal(part.view(torch.uint8), back.view(torch.uint8))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows_N", [(3, 4), (0, 2)])
def test_scales_travel_with_their_rows(
    mode: type[AllGatherExchange] | type[AllToAllExchange], rows_N: tuple[int, int]
) -> None:
    """Each row has its own scale, a thousand times the last one's, so that none can be swapped."""
    x_NTZ = [torch.randn(n, 6) * 1000.0 ** torch.arange(n)[:, None] for n in rows_N]
    slots_NTK = [(torch.arange(n) % 4)[:, None] for n in rows_N]

    def dispatch(peers: Peers) -> tuple[Tensor, Tensor]:
        exchange = mode(peers, SlotLayout((2, 2)), CpuBackend(), CODER)
        slots, rows = slots_NTK[peers.rank], rows_N[peers.rank]
        kind = StepKind.REAL if rows else StepKind.DUMMY
        view = announce(peers, Step(kind, Phase.DECODE), num_rows=rows)
        placed = Placed(
            x_NTZ[peers.rank], PhysicalIds(slots), LogicalIds(slots + 10), torch.ones(rows, 1)
        )
        arrived = exchange.dispatch(placed, view)
        assert isinstance(arrived.rows, Int8Rows)
        assert arrived.rows.q_MZ.dtype == torch.int8
        claimed, received = arrived.claimed_NS, arrived.received_NS
        own = torch.arange(2) + 2 * peers.rank + 10
        assert torch.equal(claimed, torch.where(received > 0, own, -1))
        return dequantise(arrived.rows), arrived.counts.counts_S

    x_AZ, slots_A = torch.cat(x_NTZ), torch.cat(slots_NTK)[:, 0]
    want = CODER.encode(x_AZ[slots_A.sort(stable=True).indices])
    ended = run_threads(dispatch, num_ranks=2)
    assert torch.equal(torch.cat([rows for rows, _ in ended]), dequantise(want))
    counts = torch.cat([counts for _, counts in ended])
    assert torch.equal(counts, torch.bincount(slots_A, minlength=4))


def test_experts_that_cannot_read_quantised_rows_say_so() -> None:
    counts = CpuBackend().count_groups(torch.zeros(2, dtype=torch.int64), 1)
    rows = CODER.encode(torch.ones(2, 4))
    none = torch.zeros((1, 1), dtype=torch.int64)
    weights = DenseWeights(torch.ones(1, 6, 4), torch.ones(1, 4, 3))
    with pytest.raises(UnreadableRows, match=r"in the form int8, but the experts here are"):
        compute_grouped(
            Dispatched(rows, counts, none, none, None),
            weights,
            activation=SwiGLU(),
            backend=CpuBackend(),
        )


def test_what_a_slot_is_taken_for_is_told_where_experts_disagree_too() -> None:
    slots, experts = torch.tensor([2, 0, 2, -1, 3]), torch.tensor([7, 5, 6, 9, 1])
    assert claims(slots, experts, 4).numpy().tolist() == [5, UNCLAIMED, SEVERAL, 1]


@pytest.mark.parametrize("mode", ExchangeMode)
def test_a_table_that_is_stale_at_another_rank_is_found_out_where_the_rows_arrive(
    mode: ExchangeMode,
) -> None:
    """Rank 0 goes on sending to where rank 1 held an expert before a move."""
    shape = kimi_like(num_layers=1)
    layout = random_layout(shape, (4, 4), seed=5)
    moved = np.array(layout.phy2log_LP)
    moved[0, [4, 5]] = moved[0, [5, 4]]
    tables = np.array(layout.tables_NLEJ)
    tables[1, 0, moved[0, [4, 5]], 0] = [4, 5]
    after = replace(layout, phy2log_LP=moved, tables_NLEJ=tables)

    def serve(peers: ThreadPeers) -> str:
        start = (layout, after)[peers.rank].start(peers.rank)
        runtime = MoeRuntime(SyntheticModel(shape), start, peers=peers, mode=mode)
        with pytest.raises((StaleTable, BrokenBarrierError)) as told:
            runtime.forward(
                Batch.of(tokens(shape, 9, seed=1), ByGate(), Step(StepKind.REAL, Phase.DECODE))
            )
        peers.leave()
        return str(told.value)

    _, told = run_threads(serve, num_ranks=2)
    held, claimed = moved[0, 4], layout.phy2log_LP[0, 4]
    assert f"rank 0 takes local slot 0 for expert {claimed}, it holds {held}" in told
    assert "dispatch tables are stale" in told
