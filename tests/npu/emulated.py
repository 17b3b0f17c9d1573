"""The unmodified Ascend backend on emulated kernels against the CPU backend, on two ranks.

    python -m tests.npu.emulated

Runs beside torch_npu. Prints each comparison with its error, as a share of the result's norm.
"""

from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.coding import FormCoder
from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_ffn import Arrangements, NpuFfn
from moe_runtime.backends.npu_mc2 import Communicator, NpuMc2
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.npu_errors import RowsLost
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.stages import AllGatherCarry, Computed, Dispatched, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind, StepView
from moe_runtime.contracts.weights import DenseWeights, ExpertWeights, PlainExpertWeights
from moe_runtime.exchange.all_gather import AllGatherExchange
from moe_runtime.exchange.limits import UNLIMITED
from moe_runtime.exchange.npu_all_gather import NpuAllGatherExchange
from moe_runtime.exchange.npu_all_to_all import NpuAllToAllExchange
from moe_runtime.exchange.npu_mc2 import NpuMc2Carry, NpuMc2Exchange
from moe_runtime.exchange.peers import GroupPeers
from moe_runtime.experts.activations import SwiGLU
from moe_runtime.experts.mlp import compute_grouped
from moe_runtime.formats.fusing import fused
from moe_runtime.formats.packing import Packing, WeightFormat, pack
from moe_runtime.layer.passage import Lent, Passage, Staged
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.runtime.npu_fused import NpuFusedPassage
from tests.npu.emulated_engine import compare_engine
from tests.npu.emulation import CALLED, KERNELS, register
from tests.npu.emulation_ffn import register_custom
from tests.npu.pipeline import NOT_BUILT
from tests.runtime.ranks import run_ranks

C = TypeVar("C")

SLOTS, WIDTH, INNER, K = 3, 256, 64, 2
ROWS_OF_STEPS = ((5, 3), (4, 0), (0, 1))
BF16 = 2.0**-8
_STEP = {
    RowForm.PLAIN: 0.0,
    RowForm.INT8: 2 / 254,
    RowForm.FP8: 2.0**-3,
    RowForm.MXFP8: 2.0**-3,
    RowForm.MXFP4: 2.0**-1,
}
"""How far two neighbours of a form may be apart, of a row's largest number or of their own."""


def bound_of(form: RowForm) -> float:
    """Both sides round to bfloat16 six times between rows and results, half of 2 ** -8 each time;
    rows that were rounded differently may differ by a step of their form, twice, and scales of
    weights are rounded to bfloat16 or float16, twice."""
    return 6 * BF16 + 2 * (_STEP[form] + (BF16 if form is not RowForm.PLAIN else 0))


PACKINGS = (
    *(Packing(stored) for stored in WeightFormat if stored not in NOT_BUILT),
    Packing(WeightFormat.W4A8, group_size=8),
    Packing(WeightFormat.W4A16, group_size=8),
)


def weights_of(packing: Packing, rank: int) -> PlainExpertWeights:
    random = torch.Generator().manual_seed(10 + rank)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random) / shape[-1] ** 0.5

    dense = DenseWeights(normal(SLOTS, 2 * INNER, WIDTH), normal(SLOTS, WIDTH, INNER))
    return pack(dense, packing, torch.bfloat16)


FUSED = (WeightFormat.UNQUANTISED, WeightFormat.W8A8)
CAPACITY = 64


class Lender:
    """Meets `Compute` and `Lending`: the experts of one layer, for one operator that does all."""

    def __init__(self, experts: ExpertWeights, arrived: Dispatched[AllGatherCarry]) -> None:
        self.experts, self._arrived = experts, arrived
        self.arrangements = Arrangements(NpuDoor(torch.ops.npu, torch.device("cpu")))

    def __call__(self, dispatched: Dispatched[C], /) -> Computed[C]:
        del dispatched
        raise AssertionError("nothing was to go the other way")

    def lend(self, received_NS: Tensor, claimed_NS: Tensor) -> Lent:
        assert torch.equal(received_NS, self._arrived.received_NS)
        assert torch.equal(claimed_NS, self._arrived.claimed_NS)
        return Lent(self.experts, SwiGLU())


def fused_way(
    backend: NpuBackend, peers: GroupPeers, layout: SlotLayout, arrangements: Arrangements
) -> NpuFusedPassage:
    door = replace(backend.door, custom=torch.ops._C_ascend)
    own = Communicator("emulated", peers.rank, 2)
    ffn = NpuFfn(door, own, layout.num_slots, CAPACITY)
    coder = FormCoder(backend, RowForm.PLAIN)
    direct = Staged(NpuAllToAllExchange(peers, layout, backend, coder))
    return NpuFusedPassage(
        peers, layout, ffn, arrangements, UNLIMITED, buffer_rows=16, otherwise=direct
    )


def compare_moves(rank: int) -> None:
    """Write to a slot after its experts were arranged: what is lent next is not what was."""
    backend = NpuBackend(NpuDoor(torch.ops.npu, torch.device("cpu")))
    experts = fused(weights_of(Packing(WeightFormat.W8A8), rank))
    arrangements = Arrangements(backend.door)
    before = arrangements.of(experts)
    assert arrangements.of(experts) is before, "what nobody wrote to was arranged again"
    experts.named()["w2"][1].neg_()
    after = arrangements.of(experts)
    assert torch.equal(after.w2[1], -before.w2[1])
    assert torch.equal(after.w13[1], before.w13[1])
    experts.named()["w13_fused"][0].zero_()
    assert not bool(arrangements.of(experts).scales13[0].any())
    assert bool(after.scales13[0].any()), "scales and matrices were not of one moment"


def compare_losses(rank: int) -> None:
    """Send more than the operator takes: it drops rows, and that is told."""
    backend, peers = NpuBackend(NpuDoor(torch.ops.npu, torch.device("cpu"))), GroupPeers()
    layout, random = SlotLayout((SLOTS, SLOTS)), torch.Generator().manual_seed(1)
    experts = fused(weights_of(Packing(WeightFormat.W8A8), rank))
    x = torch.randn((4, WIDTH), generator=random).bfloat16()
    ids = torch.tensor([[0, 3], [0, 3], [0, 4], [0, 3]])
    placed = Placed(x, PhysicalIds(ids), LogicalIds(ids), torch.ones(ids.shape))
    step = Step(StepKind.REAL, Phase.DECODE)
    view = StepView(rank=rank, rows_N=(4, 4), steps_N=(step, step))
    plain = CpuBackend()
    arrived = AllGatherExchange(peers, layout, plain, FormCoder(plain, RowForm.INT8)).dispatch(
        placed, view
    )
    lender = Lender(experts, arrived)
    way = fused_way(backend, peers, layout, lender.arrangements)
    narrow = replace(way, operator=replace(way.operator, capacity=5))
    with pytest.raises(RowsLost, match="this step is lost"):
        narrow.run(placed, view, lender)


def compare_layers(rank: int, packing: Packing, rows_N: tuple[int, int]) -> dict[str, float]:
    form = packing.format.rows
    backend = NpuBackend(NpuDoor(torch.ops.npu, torch.device("cpu")))
    peers, layout = GroupPeers(), SlotLayout((SLOTS, SLOTS))
    random = torch.Generator().manual_seed(rank)
    x = torch.randn((rows_N[rank], WIDTH), generator=random).bfloat16()
    ids = torch.rand((rows_N[rank], 2 * SLOTS), generator=random).argsort(1)[:, :K]
    weights_TK = torch.rand((rows_N[rank], K), generator=random)
    placed = Placed(x, PhysicalIds(ids), LogicalIds(ids), weights_TK)
    step = Step(StepKind.REAL, Phase.DECODE)
    view = StepView(rank=rank, rows_N=rows_N, steps_N=(step, step))
    coder, experts = FormCoder(backend, form), weights_of(packing, rank)
    plain = CpuBackend()
    reference = AllGatherExchange(peers, layout, plain, FormCoder(plain, form))
    arrived = reference.dispatch(placed, view)
    right = reference.combine(
        compute_grouped(arrived, experts, activation=SwiGLU(), backend=plain)
    ).x_TZ
    mc2 = NpuMc2(backend.door, Communicator("emulated", rank, 2), 2 * SLOTS)
    ways: dict[str, Passage] = {
        "all_gather": Staged(NpuAllGatherExchange(peers, layout, backend, coder)),
        "all_to_all": Staged(NpuAllToAllExchange(peers, layout, backend, coder)),
        "mc2": Staged(NpuMc2Exchange(peers, layout, mc2, form, UNLIMITED)),
        "mc2 by nodes": Staged(
            NpuMc2Exchange(peers, layout, replace(mc2, by_nodes=True), form, UNLIMITED)
        ),
    }

    by_one = replace(backend, fuses=True)

    def compute(given: Dispatched[C]) -> Computed[C]:
        assert torch.equal(given.counts.counts_S, arrived.counts.counts_S)
        assert torch.equal(given.received_NS, arrived.received_NS)
        assert torch.equal(given.claimed_NS, arrived.claimed_NS)
        fused = isinstance(given.carry, NpuMc2Carry)  # so that both ways are seen
        by = by_one if fused else backend
        return compute_grouped(given, experts, activation=SwiGLU(), backend=by)

    errors: dict[str, float] = {}
    lender = Lender(fused(experts), arrived)
    if packing.format in FUSED:
        ways["fused_mc2"] = fused_way(backend, peers, layout, lender.arrangements)
    for name, way in ways.items():
        got = way.run(placed, view, lender if name == "fused_mc2" else compute).x_TZ
        assert got.shape == right.shape
        assert bool(got.isfinite().all()), f"{name} read a row that nobody wrote"
        missed = (got.double() - right.double()).square().sum()
        size = right.double().square().sum().clamp(min=1e-30)
        errors[name] = float((missed / size).sqrt())
    return errors


def compare_gating() -> None:
    backend, reference = NpuBackend(NpuDoor(torch.ops.npu, torch.device("cpu"))), CpuBackend()
    logits = torch.randn((37, 32), generator=torch.Generator().manual_seed(3))
    correction = torch.linspace(-0.3, 0.3, 32)
    for scoring in (Scoring.SOFTMAX, Scoring.SIGMOID):
        for renormalise in (True,) if scoring is Scoring.SIGMOID else (True, False):
            for groups, kept in ((1, 1), (4, 2)):
                for bias in (None, correction):
                    settings = SelectorSettings(
                        num_experts=32,
                        top_k=4,
                        scoring=scoring,
                        renormalise=renormalise,
                        factor=2.5,
                        num_groups=groups,
                        kept_groups=kept,
                    )
                    got = backend.gate(logits, settings, bias)
                    right = reference.gate(logits, settings, bias)
                    assert torch.equal(got.experts.ids_TK, right.experts.ids_TK), settings
                    torch.testing.assert_close(got.weights_TK, right.weights_TK, rtol=1e-5, atol=0)


def work(rank: int, _: object) -> list[str]:
    import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports, reportUnusedImport]

    kept = register()
    custom = register_custom()
    compare_gating()
    compare_moves(rank)
    compare_losses(rank)
    compare_engine(rank)
    lines: list[str] = []
    for packing in PACKINGS:
        most = bound_of(packing.format.rows)
        for rows_N in ROWS_OF_STEPS:
            for way, error in compare_layers(rank, packing, rows_N).items():
                told = f"{way} {packing.format.value}/{packing.group_size} {rows_N}"
                assert error <= most, f"{told}: {error} over {most}"
                lines.append(f"{told} rank {rank}: {error:.4f}")
    assert KERNELS.keys() == CALLED, "a kernel that nobody called was compared with nothing"
    del kept, custom
    return lines


if __name__ == "__main__":
    for said in run_ranks(work, None, num_ranks=2, deadline_s=90):
        print("\n".join(said))  # noqa: T201
