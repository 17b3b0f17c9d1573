"""What is of another type than it must be is refused where it is handed over, by name."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import BadInstall, BadTable, ShapeMismatch
from moe_runtime.contracts.spread import TokenSpread
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.exchange.blocks import BlockRows
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ByLogits,
    ExchangeMode,
    ExpertAdapters,
    LayerWeights,
    MoeRuntime,
    Nodes,
    Packing,
    Phase,
    SharedExpert,
    Start,
    Step,
    StepKind,
    SyntheticModel,
    Traffic,
    WeightFormat,
)
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import kimi_like, random_layout, tokens
from tests.runtime.test_lora import NUM, drawn

SHAPE = stack_of(KINDS["softmax"])
START = random_layout(SHAPE, (10,), seed=1).start(0)
DECODE = Step(StepKind.REAL, Phase.DECODE)
DIRECT = ExchangeMode.ALL_TO_ALL


def runtime(start: Start = START, model: SyntheticModel | None = None) -> MoeRuntime:
    return MoeRuntime(model or SyntheticModel(SHAPE), start, peers=Alone(), mode=DIRECT)


@pytest.mark.parametrize(
    ("kind", "phase"),
    [(1, Phase.DECODE), ("dummy", Phase.DECODE), (StepKind.REAL, 1), (True, Phase.PREFILL)],
)
def test_a_step_is_of_a_kind_and_a_phase_and_not_of_numbers(kind: object, phase: object) -> None:
    """A dummy step by its number would bring tokens past the check of dummy steps."""
    with pytest.raises(ShapeMismatch, match=r"expected a (StepKind|Phase) of moe_runtime"):
        Step(cast("StepKind", kind), cast("Phase", phase))


TRAFFIC: list[tuple[str, Callable[[], object]]] = [
    ("mode 'all_to_all'", lambda: Traffic(mode=cast("ExchangeMode", "all_to_all"))),
    ("spread 2", lambda: Traffic(mode=DIRECT, spread=cast("TokenSpread", 2))),
    ("block_rows 8", lambda: Traffic(mode=DIRECT, block_rows=cast("BlockRows", 8))),
    ("nodes 8", lambda: Traffic(mode=DIRECT, nodes=cast("Nodes", 8))),
    ("format 'w8a8'", lambda: Packing(cast("WeightFormat", "w8a8"))),
    (
        "groups of w4a8 weights",
        lambda: Packing(WeightFormat.W4A8, cast("int", 8.0)),
    ),
    (
        "mode 'mc2'",
        lambda: MoeRuntime(
            SyntheticModel(SHAPE), START, peers=Alone(), mode=cast("ExchangeMode", "mc2")
        ),
    ),
]


@pytest.mark.parametrize(("says", "make"), TRAFFIC)
def test_settings_are_of_their_types_and_not_of_words_for_them(
    says: str, make: Callable[[], object]
) -> None:
    with pytest.raises(ShapeMismatch, match=says):
        make()


@pytest.mark.parametrize("rows", [1.5, True, "2", -1])
def test_staging_rows_are_a_whole_number(rows: object) -> None:
    with pytest.raises(ShapeMismatch, match="staging_rows"):
        runtime(replace(START, staging_rows=cast("int", rows)))


@pytest.mark.parametrize("layer", [True, False, 0.5, 2])
def test_a_layer_is_a_whole_number_below_those_there_are(layer: object) -> None:
    served = runtime()
    table, held = served.tables()[0], served.held()[0]
    with pytest.raises(BadTable, match="no such layer"):
        served.set_table(cast("int", layer), table)
    with pytest.raises(BadInstall, match="no such layer"):
        served.install(cast("int", layer), [], held)
    served.set_table(cast("int", np.int64(0)), table)


def test_sparse_tokens_and_logits_are_refused() -> None:
    x_TD = tokens(SHAPE, 3, seed=1)
    logits_LTE = torch.ones((SHAPE.num_layers, 3, SHAPE.num_candidates))
    with pytest.raises(ShapeMismatch, match=r"x_TD of torch\.sparse_coo"):
        runtime().forward(Batch.of(x_TD.to_sparse(), ByGate(), DECODE))
    with pytest.raises(ShapeMismatch, match=r"logits_LTE of torch\.sparse_coo"):
        runtime().forward(Batch.of(x_TD, ByLogits(logits_LTE.to_sparse()), DECODE))


def stacks_of(layer: ExpertAdapters, change: Callable[[Tensor], Tensor]) -> ExpertAdapters:
    stacks = (layer.a13_NERZ, layer.b13_NEFR, layer.a2_NERI, layer.b2_NEZR)
    return ExpertAdapters(*(change(stack) for stack in stacks))


ADAPTERS: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (lambda s: s[0], r"a13 of adapters.*\(N, E, R, Z\)"),
    (lambda s: s.int(), "a13 of adapters of layer 0, of torch.int32"),
    (lambda s: s * torch.nan, "a13 of adapters of layer 0, not finite"),
    (lambda s: s * 1e300, "a13 of adapters of layer 0, not finite in torch.float32"),
]


@pytest.mark.parametrize(("change", "says"), ADAPTERS)
def test_adapters_are_finite_floats_of_four_axes(
    change: Callable[[Tensor], Tensor], says: str
) -> None:
    shape = kimi_like()
    start = random_layout(shape, (9,), seed=1).start(0)
    traffic = Traffic(mode=DIRECT, num_adapters=NUM)
    served = MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=traffic)
    with pytest.raises(ShapeMismatch, match=says):
        served.load_adapters([stacks_of(layer, change) for layer in drawn()])


class Large(SyntheticModel):
    """Weights that float32 has, and for whose scales float16 has no number."""

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        return large(SyntheticModel.expert(self, layer, expert, dtype))


class LargeShared(SyntheticModel):
    def layer(self, layer: int, dtype: torch.dtype) -> LayerWeights:
        whole = SyntheticModel.layer(self, layer, dtype)
        weights = whole.shared[0].weights
        assert isinstance(weights, DenseWeights)
        return replace(whole, shared=(SharedExpert(large(weights)),))


def large(weights: DenseWeights) -> DenseWeights:
    return DenseWeights(weights.w13_SFZ, weights.w2_SZI * 1e7)


@pytest.mark.parametrize(
    ("model", "packing", "dtype", "says"),
    [
        (Large, WeightFormat.W4A8, torch.float16, "expert 0 of layer 0"),
        (Large, WeightFormat.W4A16, torch.float16, "expert 0 of layer 0"),
        (Large, WeightFormat.W4A8, torch.float32, "expert 0 of layer 0"),
        (LargeShared, WeightFormat.W4A8, torch.float32, "shared expert 0 of layer 0"),
    ],
)
def test_finite_weights_whose_scales_are_not_finite_are_refused(
    model: type[SyntheticModel], packing: WeightFormat, dtype: torch.dtype, says: str
) -> None:
    shape = replace(SHAPE, num_shared=1, shared_packing=Packing(packing))
    with pytest.raises(ShapeMismatch, match=f"w2_scale of {says}, not finite"):
        MoeRuntime(
            model(shape), START, peers=Alone(), mode=DIRECT, dtype=dtype, packing=Packing(packing)
        )


class Small(SyntheticModel):
    """Weights that float32 has, and for which, or whose scales, float16 has next to nothing."""

    size = 1e-7

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        weights = SyntheticModel.expert(self, layer, expert, dtype)
        return DenseWeights(weights.w13_SFZ, torch.sign(weights.w2_SZI) * self.size)


class Smaller(Small):
    size = 1e-9


class Tiny(Small):
    """As small as float16 tells apart."""

    size = 1e-5


class Nothing(Small):
    size = 0.0


@pytest.mark.parametrize("model", [Small, Smaller])
@pytest.mark.parametrize(
    ("packing", "dtype"),
    [
        (WeightFormat.W4A8, torch.float16),
        (WeightFormat.W4A8, torch.float32),
        (WeightFormat.W4A16, torch.float16),
        (WeightFormat.UNQUANTISED, torch.float16),
    ],
)
def test_weights_that_are_too_small_for_what_is_stored_are_refused(
    model: type[SyntheticModel], packing: WeightFormat, dtype: torch.dtype
) -> None:
    """They came to zero, or to steps as coarse as themselves, without a word."""
    with pytest.raises(ShapeMismatch, match=r"w2\w* of expert 0 of layer 0, too small for .*16"):
        MoeRuntime(
            model(SHAPE), START, peers=Alone(), mode=DIRECT, dtype=dtype, packing=Packing(packing)
        )


@pytest.mark.parametrize("model", [Tiny, Nothing])
@pytest.mark.parametrize("packing", [*WeightFormat])
def test_weights_that_are_small_or_nothing_are_served(
    model: type[SyntheticModel], packing: WeightFormat
) -> None:
    MoeRuntime(
        model(SHAPE),
        START,
        peers=Alone(),
        mode=DIRECT,
        dtype=torch.bfloat16,
        packing=Packing(packing),
    )


@pytest.mark.slow
def test_a_reader_that_has_read_enough_of_the_capabilities_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "moe_runtime", "capabilities", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as told:
        assert told.stdout is not None
        assert told.stderr is not None
        told.stdout.close()
        errors = told.stderr.read().decode()
    assert errors == ""
