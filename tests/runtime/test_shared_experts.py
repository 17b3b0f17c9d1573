"""Shared experts: in any format, gated or not, beside routed ones, and in what order.

Axes    T tokens   D width
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.coding import FormCoder
from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.cpu_rows import dequantise, quantise
from moe_runtime.capture.step import NO_CAPTURE
from moe_runtime.contracts.errors import MomentMissed, ShapeMismatch
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import Linear
from moe_runtime.contracts.rows import RowForm, Rows
from moe_runtime.contracts.timeline import InOrder, Moment
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.exchange.peers import announce
from moe_runtime.experts.shared import ExpertGate, SharedExpert, compute_shared
from moe_runtime.formats.packing import dense_of, pack
from moe_runtime.layer.given import LayerInput, LayerMaths, RankState
from moe_runtime.layer.layer import MoELayer
from moe_runtime.layer.parts import rms_norm
from moe_runtime.placement.counters import LoadCounters
from moe_runtime.placement.maps import DispatchTables
from moe_runtime.routing.router import GatingPath, bind
from moe_runtime.runtime import (
    CPU,
    NO_TOKEN_IDS,
    Alone,
    Batch,
    ByGate,
    ExchangeMode,
    MoeRuntime,
    Packing,
    Phase,
    StackShape,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
    Traffic,
    WeightFormat,
)
from moe_runtime.runtime.ways import Ways
from tests.runtime.stacks import kimi_like, random_layout, tokens

WIDE = torch.float64
DECODE = Step(StepKind.REAL, Phase.DECODE)
SHAPE = kimi_like(num_layers=1)


class Log:
    """A recording backend and a recording timeline: what came after what."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def mark(self, moment: Moment) -> None:
        if (line := f"reached {moment.name}") not in self.lines:
            self.lines.append(line)

    @contextmanager
    def beside(self) -> Generator[None]:
        self.lines.append("beside")
        yield
        self.lines.append("no longer beside")

    def wait(self, moment: Moment) -> None:
        self.lines.append(f"wait for {moment.name}")

    def join(self) -> None:
        self.lines.append("join")


class LoggedBackend(CpuBackend):
    def __init__(self, log: Log) -> None:
        self._log = log

    def quantise(self, x_MZ: Tensor, form: RowForm) -> Rows:
        self._log.lines.append("quantise")
        return super().quantise(x_MZ, form)

    def grouped_linear(self, rows: Rows, linear: Linear, counts: GroupCounts) -> Tensor:
        self._log.lines.append("multiply")
        return super().grouped_linear(rows, linear, counts)


STEPS = [
    *("wait for ROUTED", "quantise", "wait for DISPATCH", "multiply"),
    *("wait for DOWN", "quantise", "wait for COMBINE", "multiply"),
]


def served(shape: StackShape, x_TD: Tensor, *, gated: bool) -> Tensor:
    model = SyntheticModel(shape, gates_shared=gated)
    start = random_layout(shape, (10,), seed=3).start(0)
    mode = ExchangeMode.ALL_TO_ALL
    runtime = MoeRuntime(model, start, peers=Alone(), mode=mode, dtype=WIDE)
    return runtime.forward(Batch.of(x_TD, ByGate(), DECODE))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("stored", WeightFormat)
def test_shared_experts_of_every_format_are_gated_and_read_the_full_width(
    stored: WeightFormat, *, gated: bool
) -> None:
    packing = Packing(stored)
    shape = replace(SHAPE, shared_packing=packing)
    x_TD = tokens(shape, 5, seed=1).to(WIDE)
    got_TD = served(shape, x_TD, gated=gated) - served(
        replace(shape, num_shared=0), x_TD, gated=False
    )
    normed_TD = rms_norm(x_TD)
    want_TD = torch.zeros_like(x_TD)
    for expert in SyntheticModel(shape, gates_shared=gated).layer(0, WIDE).shared:
        dense = dense_of(pack(dense_of(expert.weights), packing, WIDE))
        read_TD = dequantise(quantise(normed_TD, stored.rows))
        hidden = quantise(shape.activation(read_TD @ dense.w13_SFZ[0].t()), stored.rows)
        y_TD = dequantise(hidden) @ dense.w2_SZI[0].t()
        if isinstance(expert.gate, ExpertGate):
            y_TD = y_TD / (1 + torch.exp(-(normed_TD * expert.gate.gate_1D).sum(dim=1)))[:, None]
        want_TD = want_TD + y_TD
    assert want_TD.abs().amax() > 0.1
    # int4 kernels add a scale bias, and the format keeps it in float32.
    unit = 2.0**-22 if stored is WeightFormat.W4A8 else 1e-10
    assert (got_TD - want_TD).abs().amax() < unit * want_TD.abs().amax()


def test_each_of_the_four_steps_waits_for_its_own_moment() -> None:
    log = Log()
    dense = DenseWeights(torch.randn(1, 16, 24), torch.randn(1, 24, 8))
    expert = SharedExpert(pack(dense, Packing(WeightFormat.W8A8), torch.float32))
    compute_shared(
        torch.randn(3, 24),
        expert,
        activation=SwiGLU(),
        backend=LoggedBackend(log),
        timeline=log,
    )
    assert log.lines == STEPS


@pytest.mark.parametrize("num_tokens", [0, 4])
@pytest.mark.parametrize("mode", ExchangeMode)
def test_all_moments_come_before_what_waits_for_them_and_the_sum_waits_for_all(
    mode: ExchangeMode, num_tokens: int
) -> None:
    log = Log()
    x_TD = tokens(SHAPE, num_tokens, seed=2)
    y_TD = layer_beside(log, mode, x_TD)
    assert y_TD.shape == x_TD.shape
    beside = log.lines.index("beside")
    reached = [line for line in log.lines if line.startswith("reached")]
    assert reached == [f"reached {moment.name}" for moment in Moment]
    assert not any(line.startswith("reached") for line in log.lines[beside:])
    steps = [line for line in STEPS if line != "quantise"] * SHAPE.num_shared
    told = [line for line in log.lines[beside:] if line != "quantise"]
    assert told == ["beside", *steps, "no longer beside", "join"]
    routed = [line for line in log.lines[:beside] if line != "quantise"]
    assert routed.index("reached DISPATCH") < routed.index("multiply")
    down = routed.index("reached DOWN")
    assert (routed[down - 1], routed[down + 1]) == ("multiply", "multiply")


def layer_beside(log: Log, mode: ExchangeMode, x_TD: Tensor) -> Tensor:
    model = SyntheticModel(SHAPE)
    start = random_layout(SHAPE, (10,), seed=3).start(0)
    runtime = MoeRuntime(model, start, peers=Alone(), mode=mode)
    state = RankState(
        runtime.slots,
        DispatchTables(start.tables_LEJ, layout=start.layout),
        LoadCounters(num_layers=1, num_slots=10, num_experts=SHAPE.num_experts),
    )
    backend = LoggedBackend(log)
    maths = LayerMaths(SHAPE.selector, SHAPE.activation, backend, time.perf_counter, lambda: log)
    weights = model.layer(0, torch.float32)
    router = bind(SHAPE.selector, weights.router, path=GatingPath.REFERENCE)
    layer = MoELayer(0, weights, router, maths, state)
    ways = Ways(
        Alone(),
        start.layout,
        SHAPE,
        Traffic(mode=mode),
        FormCoder(CpuBackend(), RowForm.PLAIN),
        CPU,
    )
    way = ways.way(announce(Alone(), DECODE, num_rows=len(x_TD)), NO_CAPTURE)
    real_T = torch.ones(len(x_TD), dtype=torch.bool)
    return layer.forward(LayerInput(x_TD, layer.gate(x_TD), real_T, NO_TOKEN_IDS), way)


def test_waiting_for_a_moment_that_never_came_is_refused() -> None:
    timeline = InOrder()
    timeline.mark(Moment.ROUTED)
    timeline.wait(Moment.ROUTED)
    with pytest.raises(MomentMissed, match="waits for 'before rows are dispatched'"):
        timeline.wait(Moment.DISPATCH)


def test_two_experts_in_one_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="w13 of a shared expert"):
        SharedExpert(DenseWeights(torch.zeros(2, 8, 6), torch.zeros(2, 6, 4)))
