"""What a batch may be: what does not fit is refused in time, what is broken spoils nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ByLogits,
    DenseReference,
    ExchangeMode,
    MoeRuntime,
    Phase,
    Step,
    StepKind,
    SyntheticModel,
)
from tests.runtime.stacks import kimi_like, random_layout, tokens

DECODE = Step(StepKind.REAL, Phase.DECODE)
KIMI = kimi_like()


def alone(mode: ExchangeMode, dtype: torch.dtype = torch.float32) -> MoeRuntime:
    start = random_layout(KIMI, (11,), seed=1, num_empty=1).start(0)
    return MoeRuntime(SyntheticModel(KIMI), start, peers=Alone(), mode=mode, dtype=dtype)


def relative_error(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


@dataclass(slots=True)
class Silent(Alone):
    """A group in which nothing may be said once it is hushed."""

    hushed: bool = False

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        assert not self.hushed, f"{rows.shape} {rows_N} were sent although the batch is unfit"
        return Alone.all_gather(self, rows, rows_N)


MISFITS = {
    "width": (Batch.of(torch.zeros(3, 23), ByGate(), DECODE), r"x_TD has shape \(3, 23\)"),
    "axes": (Batch.of(torch.zeros(24), ByGate(), DECODE), r"x_TD has shape \(24,\)"),
    "real too short": (
        Batch(torch.zeros(3, 24), torch.ones(2, dtype=torch.bool), ByGate(), DECODE),
        r"real_T has shape \(2,\), expected bool \(3,\)",
    ),
    "real not bool": (
        Batch(torch.zeros(3, 24), torch.ones(3, dtype=torch.int64), ByGate(), DECODE),
        r"expected bool \(3,\)",
    ),
    "logits of one layer": (
        Batch.of(torch.zeros(3, 24), ByLogits(torch.zeros(1, 3, 8)), DECODE),
        r"logits_LTE has shape \(1, 3, 8\), expected \(2, 3, 8\)",
    ),
    "logits of other tokens": (
        Batch.of(torch.zeros(3, 24), ByLogits(torch.zeros(2, 4, 8)), DECODE),
        r"logits_LTE has shape \(2, 4, 8\), expected \(2, 3, 8\)",
    ),
}


@pytest.mark.parametrize(("batch", "told"), MISFITS.values(), ids=MISFITS.keys())
def test_a_batch_that_does_not_fit_is_refused_before_the_group_hears_of_it(
    batch: Batch, told: str
) -> None:
    """Later, the others would wait in a collective that this rank never joins."""
    shape = KIMI
    start = random_layout(shape, (9,), seed=1).start(0)
    mode = ExchangeMode.ALL_TO_ALL
    runtime = MoeRuntime(SyntheticModel(shape), start, peers=(peers := Silent()), mode=mode)
    peers.hushed = True
    with pytest.raises(ShapeMismatch, match=told):
        runtime.forward(batch)
    assert runtime.counters().steps_G.sum() == 0


@pytest.mark.parametrize("mode", ExchangeMode)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 1e-2)], ids=str
)
def test_half_precision_computes_the_same_experts(
    mode: ExchangeMode, dtype: torch.dtype, tolerance: float
) -> None:
    """The residual stream is hundreds large, so its square does not fit float16."""
    shape = KIMI
    x_TD = tokens(shape, 20, seed=4)
    draw = torch.Generator().manual_seed(1)
    routed = ByLogits(torch.randn((shape.num_layers, 20, shape.num_experts), generator=draw))
    got = alone(mode, dtype).forward(Batch.of(x_TD, routed, DECODE))
    want = DenseReference(SyntheticModel(shape)).forward(x_TD, routed)
    assert got.dtype == dtype
    assert relative_error(got, want) < tolerance


@pytest.mark.parametrize("mode", ExchangeMode)
def test_equal_steps_give_equal_bits(mode: ExchangeMode) -> None:
    shape = KIMI
    x_TD = tokens(shape, 20, seed=4)
    runtime = alone(mode)
    first, again = (runtime.forward(Batch.of(x_TD, ByGate(), DECODE)) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("mode", ExchangeMode)
def test_a_token_of_nan_is_nan_and_no_other_is(mode: ExchangeMode) -> None:
    shape = KIMI
    x_TD = tokens(shape, 6, seed=4)
    clean = alone(mode).forward(Batch.of(x_TD, ByGate(), DECODE))
    x_TD[2] = float("nan")
    got = alone(mode).forward(Batch.of(x_TD, ByGate(), DECODE))
    assert got[2].isnan().all()
    others = torch.tensor([0, 1, 3, 4, 5])
    torch.testing.assert_close(got[others], clean[others])
