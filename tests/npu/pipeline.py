"""The whole Ascend pipeline of one layer on tensors without numbers: shapes and dtypes only.

    python -m tests.npu.pipeline MODE

MODE all_gather, all_to_all, mc2 or "mc2 by nodes"; in each, every format that is built, on meta
and fake tensors.
Runs beside torch_npu: gating, dispatch, experts and combine go through its real schemas and shape
functions.
"""

import importlib
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from moe_runtime.backends.coding import FormCoder
from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_mc2 import Communicator, NpuMc2
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.ids import PhysicalIds
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.stages import Computed, Dispatched, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind, StepView
from moe_runtime.contracts.weights import DenseWeights, PlainExpertWeights
from moe_runtime.exchange.limits import MC2_A3
from moe_runtime.exchange.npu_all_gather import NpuAllGatherExchange
from moe_runtime.exchange.npu_all_to_all import NpuAllToAllExchange
from moe_runtime.exchange.npu_mc2 import NpuMc2Exchange
from moe_runtime.exchange.peers import Arrived, Pending
from moe_runtime.experts.activations import SwiGLU
from moe_runtime.experts.mlp import compute_grouped
from moe_runtime.formats.packing import Packing, WeightFormat, pack
from moe_runtime.layer.passage import Passage, Staged
from moe_runtime.placement.maps import SlotLayout

C = TypeVar("C")
P = TypeVar("P")

NOT_BUILT = {WeightFormat.W4A8_MXFP, WeightFormat.W4A16_MXFP4}
"""Refused at load: operators read their weights in the device's own layout only."""

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


FORMATS = (
    *(Packing(stored) for stored in WeightFormat if stored not in NOT_BUILT),
    Packing(WeightFormat.W4A8, group_size=64),
    Packing(WeightFormat.W4A16, group_size=64),
)


def without_numbers(weights: P, device: torch.device) -> P:
    """Return the same weights with tensors of the same kinds on a device, empty."""
    if isinstance(weights, Tensor):
        return cast("P", torch.empty(weights.shape, dtype=weights.dtype, device=device))
    assert is_dataclass(weights)
    assert not isinstance(weights, type)
    parts = {f.name: without_numbers(getattr(weights, f.name), device) for f in fields(weights)}
    return replace(weights, **parts)


def passage_of(mode: str, backend: NpuBackend, form: RowForm) -> Passage:
    layout, coder = SlotLayout((SLOTS,) * RANKS), FormCoder(backend, form)
    match mode:
        case "all_gather":
            return Staged(NpuAllGatherExchange(Shapes(), layout, backend, coder))
        case "all_to_all":
            return Staged(NpuAllToAllExchange(Shapes(), layout, backend, coder, read=some_counts))
        case _:
            by_nodes = mode == "mc2 by nodes"
            mc2 = NpuMc2(backend.door, Communicator("g", 1, RANKS), SLOTS * RANKS, by_nodes)
            return Staged(NpuMc2Exchange(Shapes(), layout, mc2, form, MC2_A3, reads_ids=False))


def run(mode: str, packed: PlainExpertWeights, device: torch.device) -> None:
    form = packed.rows
    backend = NpuBackend(NpuDoor(torch.ops.npu, device), fuses=True)
    settings = SelectorSettings(num_experts=RANKS * SLOTS, top_k=K, scoring=Scoring.SIGMOID)
    chosen = backend.gate(torch.empty(OWN, RANKS * SLOTS, device=device), settings, None)
    assert chosen.weights_TK.shape == (OWN, K)
    step = Step(StepKind.REAL, Phase.DECODE)
    view = StepView(rank=1, rows_N=(7, OWN, 0, 3), steps_N=(step,) * RANKS)
    x_TZ = torch.empty(OWN, WIDTH, dtype=torch.bfloat16, device=device)
    slots = PhysicalIds(chosen.experts.ids_TK)
    placed = Placed(x_TZ, slots, chosen.experts, chosen.weights_TK)
    weights = without_numbers(packed, device)

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


A3 = 250
"""The number by which torch_npu knows that family."""


def say_a3() -> None:
    """Have the shape function of a hierarchical dispatch, which asks what chip there is, told."""
    name = "torch_npu.op_plugin.meta._meta_registrations"
    vars(importlib.import_module(name))["get_soc_version"] = lambda: A3


if __name__ == "__main__":
    import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports, reportUnusedImport]

    say_a3()

    ones = DenseWeights(torch.ones(SLOTS, 2 * INNER, WIDTH), torch.ones(SLOTS, WIDTH, INNER))
    for packing in FORMATS:
        packed = pack(ones, packing, torch.bfloat16)
        for mode in sys.argv[1].split(","):
            for kind in ("meta", "cpu"):
                with FakeTensorMode() if kind == "cpu" else nullcontext():
                    run(mode, packed, torch.device(kind))
                told = f"{packing.format.value}/{packing.group_size}"
                print(mode, told, "fake" if kind == "cpu" else kind)  # noqa: T201
