"""MC2 and fused MC2: sizes that all ranks know, nothing unread is used, nothing is dropped."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.exchange_errors import BadMask, BeyondLimit
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import PlainRows
from moe_runtime.contracts.stages import Computed, Dispatched, FusedMc2Carry, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.exchange.active import AllActive, Masked, masked
from moe_runtime.exchange.blocks import UnevenRows
from moe_runtime.exchange.fused_mc2 import FusedMc2Exchange, Overflow
from moe_runtime.exchange.limits import MC2_A2, MC2_A3, Limits, check_build, check_ids
from moe_runtime.exchange.mc2 import Mc2Exchange
from moe_runtime.exchange.mc2_hierarchy import Mc2HierarchyExchange
from moe_runtime.exchange.peers import Peers, announce
from moe_runtime.placement.maps import SlotLayout
from tests.runtime.threads import run_threads

BACKEND = CpuBackend()
LAYOUT = SlotLayout((2, 3, 1, 2))
FACTORS = torch.tensor([1.0, 10.0, 100.0, 2.0, 20.0, 200.0, 3.0, 30.0])


def placed(num_rows: int, *, top_k: int = 3, seed: int = 0) -> Placed:
    draw = torch.Generator().manual_seed(seed)
    slots = [torch.randperm(8, generator=draw)[:top_k] for _ in range(num_rows)]
    ids = torch.stack(slots) if slots else torch.empty((0, top_k), dtype=torch.int64)
    x = torch.randint(1, 9, (num_rows, 2), generator=draw).float()
    weights = torch.randint(1, 4, (num_rows, top_k), generator=draw).float()
    return Placed(x, PhysicalIds(ids), LogicalIds(ids + 40), weights)


def expected(given: Placed) -> Tensor:
    return given.x_TZ * (FACTORS[given.slots.ids_TK] * given.weights_TK).sum(dim=1, keepdim=True)


def scaled(arrived: Dispatched[FusedMc2Carry], rank: int) -> Tensor:
    """Multiply each row by its slot's factor; rows beyond the counts are NaN and stay so."""
    assert isinstance(arrived.rows, PlainRows)
    base, counts = LAYOUT.base(rank), arrived.counts.counts_S
    assert torch.equal(arrived.received_NS.sum(dim=0), counts)
    claimed = arrived.claimed_NS
    own = torch.arange(len(counts)) + base + 40
    assert torch.equal(claimed, torch.where(arrived.received_NS > 0, own, -1))
    rows = arrived.rows.x_MZ.clone()
    total = int(counts.sum())
    assert rows[:total].isfinite().all()
    assert rows[total:].isnan().all()
    rows[:total] *= torch.repeat_interleave(FACTORS[base : base + len(counts)], counts)[:, None]
    return rows


@dataclass(frozen=True, slots=True)
class Flat:
    def of(self, peers: Peers) -> Mc2Exchange:
        return Mc2Exchange(peers, LAYOUT, BACKEND)


@dataclass(frozen=True, slots=True)
class Uneven:
    def of(self, peers: Peers) -> Mc2Exchange:
        return Mc2Exchange(peers, LAYOUT, BACKEND, block_rows=UnevenRows(32))


@dataclass(frozen=True, slots=True)
class Hierarchical:
    def of(self, peers: Peers) -> Mc2HierarchyExchange:
        return Mc2HierarchyExchange(peers, LAYOUT, BACKEND, 2)


@pytest.mark.parametrize("kind", [Flat(), Uneven(), Hierarchical()], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("rows_N", [(3, 5, 1, 2), (0, 4, 0, 0), (6, 0, 3, 0), (0, 0, 0, 0)])
def test_mc2_brings_every_row_to_its_slot_and_back(
    kind: Flat | Uneven | Hierarchical, rows_N: tuple[int, ...]
) -> None:
    def through(peers: Peers) -> tuple[Tensor, Tensor]:
        given = placed(rows_N[peers.rank], seed=peers.rank)
        view = announce(peers, Step(StepKind.REAL, Phase.DECODE), num_rows=rows_N[peers.rank])
        exchange = kind.of(peers)
        arrived = exchange.dispatch(given, view)
        rows = scaled(arrived, peers.rank)  # pyright: ignore[reportArgumentType]
        out = exchange.combine(Computed(rows, arrived.carry))  # pyright: ignore[reportArgumentType]
        return out.x_TZ, arrived.received_NS

    ended = run_threads(through, num_ranks=4)
    for rank, (out, _) in enumerate(ended):
        assert torch.equal(out, expected(placed(rows_N[rank], seed=rank)))
    received_NP = torch.cat([received for _, received in ended], dim=1)
    for source, rows in enumerate(rows_N):
        ids = placed(rows, seed=source).slots.ids_TK.reshape(-1)
        assert torch.equal(received_NP[source], torch.bincount(ids, minlength=8))


def fused(peers: Peers, rows: int, *, capacity: int, calls: list[int]) -> Tensor | Overflow:
    given = placed(rows, seed=peers.rank)
    view = announce(peers, Step(StepKind.REAL, Phase.DECODE), num_rows=rows)

    def compute(arrived: Dispatched[FusedMc2Carry]) -> Computed[FusedMc2Carry]:
        calls.append(int(arrived.counts.counts_S.sum()))
        return Computed(scaled(arrived, peers.rank), arrived.carry)

    done = FusedMc2Exchange(peers, LAYOUT, BACKEND, capacity).run(given, view, compute)
    return done if isinstance(done, Overflow) else done.x_TZ


@pytest.mark.parametrize("rows_N", [(3, 5, 1, 2), (0, 4, 0, 0), (0, 0, 0, 0)])
def test_fused_mc2_computes_in_waves_and_every_row_once(rows_N: tuple[int, ...]) -> None:
    calls: list[list[int]] = [[] for _ in rows_N]
    outs = run_threads(
        lambda p: fused(p, rows_N[p.rank], capacity=99, calls=calls[p.rank]), num_ranks=4
    )
    for rank, out in enumerate(outs):
        assert isinstance(out, Tensor)
        assert torch.equal(out, expected(placed(rows_N[rank], seed=rank)))
    assert [len(c) for c in calls] == [2] * 4
    assert sum(map(sum, calls)) == 3 * sum(rows_N)


def test_a_step_that_does_not_fit_is_found_out_by_every_rank_before_rows_leave() -> None:
    rows_N = (4, 4, 4, 4)
    ids = torch.cat([placed(r, seed=i).slots.ids_TK.reshape(-1) for i, r in enumerate(rows_N)])
    counts = torch.bincount(ids, minlength=8)
    demand = tuple(int(c.sum()) for c in split_rows(counts, LAYOUT.slots_per_rank))
    capacity = max(demand) - 3
    calls: list[int] = []
    told = run_threads(lambda p: fused(p, 4, capacity=capacity, calls=calls), num_ranks=4)
    assert told == [Overflow(demand, capacity)] * 4
    assert told[0] == Overflow(demand, capacity)
    assert not calls


# --- masks, blocks, limits -----------------------------------------------------------------------


def test_a_block_is_padded_behind_a_mask() -> None:
    block = masked(placed(2), 5)
    assert block.active_B.numpy().tolist() == [True, True, False, False, False]
    assert (block.placed.slots.ids_TK[2:] == -1).all()


@pytest.mark.parametrize(
    ("active", "told"),
    [
        (torch.ones(2, dtype=torch.bool), "for a block of 3 rows"),
        (torch.ones(3), "a mask of torch.float32"),
        (torch.tensor([True, False, True]), "padding stands before a token"),
        (torch.tensor([True, True, False]), "rows outside the mask name slots"),
    ],
)
def test_a_mask_that_does_not_fit_its_block_is_refused(active: Tensor, told: str) -> None:
    with pytest.raises(BadMask, match=told):
        Masked(placed(3), active)


def test_more_rows_than_the_block_or_a_ranks_part_are_refused() -> None:
    with pytest.raises(BeyondLimit, match=r"rows of a rank: 6, .* 5 at most"):
        masked(placed(6), 5)
    with pytest.raises(BeyondLimit, match=r"rows of a rank: 6, .* 4 at most"):
        AllActive(placed(6), 16, 4)


@pytest.mark.parametrize(
    ("limits", "build", "told"),
    [
        (MC2_A3, {"top_k": 17}, "experts per token: 17, .* 16 at most"),
        (MC2_A3, {"width": 512}, "width: 512, .* 8192 at most, 1024 or more"),
        (MC2_A2, {"width": 7150}, "width: 7150, .* a multiple of 32"),
        (MC2_A2, {"slots_per_rank": (25,) * 16}, "slots of a rank: 25, .* 24 at most"),
        (MC2_A2, {"slots_per_rank": (8,) * 8}, "ranks: 8"),
        (MC2_A3, {"slots_per_rank": (8, 7)}, "slots of a rank: 8, .* the same on every rank"),
    ],
)
def test_what_operators_cannot_take_is_refused_by_name(
    limits: Limits, build: dict[str, int | tuple[int, ...]], told: str
) -> None:
    sound = {"top_k": 8, "width": 7168, "slots_per_rank": (8,) * 16, **build}
    with pytest.raises(BeyondLimit, match=told):
        check_build(limits, even=True, **sound)  # pyright: ignore[reportArgumentType]
    check_build(MC2_A3, top_k=8, width=7168, slots_per_rank=(8,) * 16, even=True)


@pytest.mark.parametrize(
    ("ids", "rows", "told"),
    [
        ([[0, 1], [2, 2]], 2, "tokens that name a slot twice: 1"),
        ([[0, 8]], 1, "slot ids: 8, .* 7 at most"),
        ([[0, 1]], 513, "rows of a rank: 513, .* 512 at most"),
    ],
)
def test_steps_that_operators_cannot_take_are_refused(
    ids: list[list[int]], rows: int, told: str
) -> None:
    with pytest.raises(BeyondLimit, match=told):
        check_ids(PhysicalIds(torch.tensor(ids)), num_slots=8, limits=MC2_A3, rows=rows)
    check_ids(PhysicalIds(torch.tensor([[0, -1, -1]])), num_slots=8, limits=MC2_A3, rows=1)
