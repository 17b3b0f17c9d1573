"""The whole Ascend pipeline of one layer on tensors without numbers: shapes and dtypes only.

    python -m tests.npu.pipeline MODE FORMAT DEVICE

MODE all_gather, all_to_all or mc2; FORMAT bf16 or w8a8; DEVICE meta or fake. Runs beside
torch_npu: gating, dispatch, experts and combine go through its real schemas and shape functions.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from moe_runtime.backends.coding import FormCoder
from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_mc2 import Communicator, NpuMc2
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.ids import PhysicalIds
from moe_runtime.contracts.linears import Int8Linear
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.stages import Computed, Dispatched, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind, StepView
from moe_runtime.contracts.weights import DenseWeights, ExpertWeights, W8A8Weights
from moe_runtime.exchange.limits import MC2_A3
from moe_runtime.exchange.npu_all_gather import NpuAllGatherExchange
from moe_runtime.exchange.npu_all_to_all import NpuAllToAllExchange
from moe_runtime.exchange.npu_mc2 import NpuMc2Exchange
from moe_runtime.exchange.peers import Arrived, Pending
from moe_runtime.experts.activations import SwiGLU
from moe_runtime.experts.mlp import compute_grouped
from moe_runtime.layer.passage import Passage, Staged
from moe_runtime.placement.maps import SlotLayout

C = TypeVar("C")

RANKS, OWN, WIDTH, INNER, SLOTS, K = 4, 6, 1024, 128, 2, 2


class Shapes:
    """Meets `Peers`: what arrives has the right shape and no numbers."""

    rank, size = 1, RANKS

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        return rows.new_empty((sum(rows_N), *rows.shape[1:]))

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        assert sum(sent) == rows.shape[0], f"{sent} rows are sent of {rows.shape[0]}"
        return rows.new_empty((sum(received), *rows.shape[1:]))

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        del what
        return Arrived(self.all_to_all(rows, sent, received))


def some_counts(counts: Tensor) -> list[int]:
    """Stand in for the host's reading of counts: all pairs go out, evenly; others arrive."""
    assert counts.shape == (2 * RANKS,)
    return [OWN * K // RANKS] * RANKS + [5, 0, 2, 4]


def weights_of(form: RowForm, device: torch.device) -> ExpertWeights:
    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    if form is RowForm.PLAIN:
        bf16 = torch.bfloat16
        return DenseWeights(
            empty(SLOTS, 2 * INNER, WIDTH, dtype=bf16), empty(SLOTS, WIDTH, INNER, dtype=bf16)
        )
    int8, float32 = torch.int8, torch.float32
    return W8A8Weights(
        Int8Linear(
            empty(SLOTS, 2 * INNER, WIDTH, dtype=int8), empty(SLOTS, 2 * INNER, dtype=float32)
        ),
        Int8Linear(empty(SLOTS, WIDTH, INNER, dtype=int8), empty(SLOTS, WIDTH, dtype=float32)),
    )


def passage_of(mode: str, backend: NpuBackend, form: RowForm) -> Passage:
    layout, coder = SlotLayout((SLOTS,) * RANKS), FormCoder(backend, form)
    match mode:
        case "all_gather":
            return Staged(NpuAllGatherExchange(Shapes(), layout, backend, coder))
        case "all_to_all":
            return Staged(NpuAllToAllExchange(Shapes(), layout, backend, coder, read=some_counts))
        case _:
            mc2 = NpuMc2(backend.door, Communicator("g", 1, RANKS), SLOTS * RANKS)
            return Staged(NpuMc2Exchange(Shapes(), layout, mc2, form, MC2_A3, reads_ids=False))


def run(mode: str, form: RowForm, device: torch.device) -> None:
    backend = NpuBackend(NpuDoor(torch.ops.npu, device))
    settings = SelectorSettings(num_experts=RANKS * SLOTS, top_k=K, scoring=Scoring.SIGMOID)
    chosen = backend.gate(torch.empty(OWN, RANKS * SLOTS, device=device), settings, None)
    assert chosen.weights_TK.shape == (OWN, K)
    step = Step(StepKind.REAL, Phase.DECODE)
    view = StepView(rank=1, rows_N=(7, OWN, 0, 3), steps_N=(step,) * RANKS)
    x_TZ = torch.empty(OWN, WIDTH, dtype=torch.bfloat16, device=device)
    slots = PhysicalIds(chosen.experts.ids_TK)
    placed = Placed(x_TZ, slots, chosen.experts, chosen.weights_TK)
    weights = weights_of(form, device)

    def compute(arrived: Dispatched[C]) -> Computed[C]:
        assert arrived.rows.form is form
        assert arrived.counts.counts_S.shape == (SLOTS,)
        assert arrived.counts.counts_S.dtype == torch.int64
        assert arrived.received_NS.shape == arrived.claimed_NS.shape == (RANKS, SLOTS)
        return compute_grouped(arrived, weights, activation=SwiGLU(), backend=backend)

    x_TZ = passage_of(mode, backend, form).run(placed, view, compute).x_TZ
    assert x_TZ.shape == (OWN, WIDTH)
    assert x_TZ.dtype == torch.bfloat16
    assert x_TZ.device == device


if __name__ == "__main__":
    import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports, reportUnusedImport]

    for mode in sys.argv[1].split(","):
        for form in (RowForm.PLAIN, RowForm.INT8):
            for kind in ("meta", "cpu"):
                with FakeTensorMode() if kind == "cpu" else nullcontext():
                    run(mode, form, torch.device(kind))
                print(mode, form.value, "fake" if kind == "cpu" else kind)  # noqa: T201
