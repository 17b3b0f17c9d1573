"""For users with NPUs: `make test-npu`. The project itself has never run these on an NPU.

One NPU is enough for most; those of two ranks over HCCL say so where there is only one. A report
with SoC, CANN and torch_npu versions is written to build/npu-hardware.json, with what was compared
and how far it was off.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.npu import Installation, open_npu
from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_expand import expand
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import DenseLinear, Int8Linear, Linear
from moe_runtime.contracts.rows import PlainRows, RowForm
from moe_runtime.formats.families import family_of
from moe_runtime.runtime import ExchangeMode, WeightFormat
from moe_runtime.runtime.npu_device import FFN
from tests.architecture.sources import ROOT
from tests.npu.engine_ranks import Asked, errors_of, most_of
from tests.runtime.ranks import run_ranks

pytestmark = pytest.mark.npu_hardware

REPORT = ROOT / "build/npu-hardware.json"
Opened = tuple[NpuBackend, Installation]


@pytest.fixture(scope="module")
def opened() -> Opened:
    return open_npu(int(os.environ.get("EPLB_TEST_NPU", "0")))


@pytest.fixture(scope="module")
def errors(opened: Opened) -> Iterator[dict[str, float]]:
    """What each test measured, written with the versions when all have run."""
    measured: dict[str, float] = {}
    yield measured
    _, on = opened
    report = {
        "soc": on.soc,
        "torch_npu": on.torch_npu,
        "torch": torch.__version__,
        "cann": cann_version(),
        "custom operators that are missing": on.missing,
        "against MegaMoe": on.mega_moe,
        "errors, as a share of the norm": measured,
    }
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")


def cann_version() -> str:
    """What the toolkit's own file says, or where it was looked for."""
    home = Path(os.environ.get("ASCEND_HOME_PATH", "/usr/local/Ascend/ascend-toolkit/latest"))
    told = [*home.glob("version.cfg"), *home.glob("*/ascend_toolkit_install.info")]
    return told[0].read_text().strip() if told else f"no version file in {home}"


def off(got: torch.Tensor, right: torch.Tensor) -> float:
    missed = (got.cpu().double() - right.double()).square().sum()
    return float((missed / right.double().square().sum()).sqrt())


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("scoring", [Scoring.SOFTMAX, Scoring.SIGMOID])
def test_gating(opened: Opened, errors: dict[str, float], scoring: Scoring) -> None:
    backend, _ = opened
    settings = SelectorSettings(num_experts=64, top_k=4, scoring=scoring, factor=2.5)
    logits = numbers(37, 64)
    got = backend.gate(logits.to(backend.door.device), settings, None)
    right = CpuBackend().gate(logits, settings, None)
    assert torch.equal(got.experts.ids_TK.cpu(), right.experts.ids_TK)
    errors[f"gating by {scoring.value}"] = off(got.weights_TK, right.weights_TK)
    assert errors[f"gating by {scoring.value}"] < 1e-5


@pytest.mark.parametrize("form", [RowForm.PLAIN, RowForm.INT8])
def test_experts(opened: Opened, errors: dict[str, float], form: RowForm) -> None:
    """Rows to slots, quantised or not, and one grouped linear; an empty group among them."""
    backend, _ = opened
    device = backend.door.device
    x, w = numbers(64, 256).bfloat16(), numbers(4, 128, 256)
    slots = torch.tensor([0, 2, 3, 2, 9, 0, 3, 3] * 8)[:, None]
    scale = w.abs().amax(2) / 127
    q = torch.round(w / scale[..., None]).to(torch.int8)
    plain = form is RowForm.PLAIN
    right_linear: Linear = DenseLinear(w.bfloat16()) if plain else Int8Linear(q, scale)
    linear: Linear = (
        DenseLinear(w.bfloat16().to(device))
        if plain
        else Int8Linear(q.to(device), scale.to(device))
    )
    expanded = expand(backend.door, backend.quantise(x.to(device), form), slots.to(device), 4)
    got = backend.grouped_linear(expanded.rows, linear, expanded.counts)
    order = torch.sort(slots[:, 0], stable=True).indices[: int((slots < 4).sum())]
    counts = GroupCounts(torch.tensor([16, 0, 16, 24]))
    assert torch.equal(expanded.counts.counts_S.cpu(), counts.counts_S)
    rows = CpuBackend().quantise(PlainRows(x[order]).x_MZ, form)
    right = CpuBackend().grouped_linear(rows, right_linear, counts)
    errors[f"experts of {form.value} rows"] = off(got[: order.numel()], right)
    assert errors[f"experts of {form.value} rows"] < 0.02


def test_summing_reads_no_row_that_is_not_named(opened: Opened) -> None:
    backend, _ = opened
    rows = torch.full((3, 64), torch.nan, dtype=torch.bfloat16)
    rows[0] = 2
    index, weights = torch.tensor([[0, -1], [-1, -1]]), torch.full((2, 2), 0.5)
    device = backend.door.device
    got = backend.weighted_sum(rows.to(device), index.to(device), weights.to(device)).cpu()
    assert torch.equal(got, torch.tensor([[1.0], [0.0]]).expand(2, 64).bfloat16())


def formats_of(on: Installation) -> list[WeightFormat]:
    """Those that the device's family reads and the backend is built for."""
    later = [WeightFormat.W8A8_FP8, WeightFormat.W8A8_MXFP8, WeightFormat.W4A4_MXFP4]
    ints = [WeightFormat.W8A8, WeightFormat.W4A8, WeightFormat.W4A16]
    return [WeightFormat.UNQUANTISED, *ints, *(later if family_of(on.soc).name == "A5" else [])]


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("mode", ExchangeMode)
def test_the_engine(
    opened: Opened, errors: dict[str, float], mode: ExchangeMode, num_ranks: int
) -> None:
    """Shared experts in slots, every format, before and after experts are installed in place."""
    _, on = opened
    if num_ranks > on.num_devices:
        pytest.skip("two ranks need two NPUs: HCCL was NOT checked")
    if num_ranks == 1 and mode in (ExchangeMode.MC2, ExchangeMode.FUSED_MC2):
        pytest.skip("MC2 is between ranks")
    is_fused = mode is ExchangeMode.FUSED_MC2
    if is_fused and (on.missing or family_of(on.soc).name != "A3"):
        pytest.skip(f"fused MC2 needs an A3 and vllm-ascend's {FFN}: it was NOT checked")
    fused = [WeightFormat.UNQUANTISED, WeightFormat.W8A8]
    for stored in fused if is_fused else formats_of(on):
        asked = Asked("npu", mode, stored, num_ranks)
        for rank, off_by in enumerate(run_ranks(errors_of, asked, num_ranks=num_ranks)):
            told = f"engine, {mode.value}, {stored.value}, rank {rank} of {num_ranks}"
            errors[told] = max(off_by)
            assert errors[told] < most_of(stored)
