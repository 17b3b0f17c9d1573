"""Activations against values computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import ImpossibleActivation, UnknownActivation
from moe_runtime.experts.activations import (
    GELU,
    Activation,
    ClippedSwiGLU,
    GELUTanh,
    SiTU,
    SwiGLU,
    SwiGLUOAI,
    SwiGLUStep,
    activation_named,
)

CLIPPED = ClippedSwiGLU(alpha=1.5, beta=0.25, limit=2.0)
ALL = [SwiGLU(), SwiGLU(2.0), CLIPPED, SwiGLUOAI(), SwiGLUStep(), GELU(), GELUTanh(), SiTU()]


def value(activation: Activation, gate: float, up: float) -> float:
    return float(activation(torch.tensor([[gate, up]], dtype=torch.float64))[0, 0])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_swiglu_is_silu_of_gate_times_up() -> None:
    assert math.isclose(value(SwiGLU(), 2.0, 3.0), 2.0 * sigmoid(2.0) * 3.0)


def test_swiglu_clamps_before_the_gate_is_applied() -> None:
    limited = SwiGLU(limit=1.0)
    assert math.isclose(value(limited, 5.0, -7.0), 1.0 * sigmoid(1.0) * -1.0)
    assert math.isclose(value(limited, -5.0, 0.5), -5.0 * sigmoid(-5.0) * 0.5)


@pytest.mark.parametrize(
    ("gate", "up", "want"),
    [
        (1.0, 0.5, 0.75 * 1.0 * sigmoid(1.5)),
        (9.0, 9.0, 2.25 * 2.0 * sigmoid(3.0)),
        (-9.0, -9.0, -1.75 * -9.0 * sigmoid(-13.5)),
    ],
)
def test_clipped_swiglu_honours_alpha_beta_and_limit(gate: float, up: float, want: float) -> None:
    """The gate is bounded from above only."""
    assert math.isclose(value(CLIPPED, gate, up), want)


def test_swiglu_oai_reads_gate_and_up_in_turn() -> None:
    rows = torch.tensor([[1.0, 10.0, -2.0, 0.5]], dtype=torch.float64)
    want = [8.0 * 1.0 * sigmoid(1.702), 1.5 * -2.0 * sigmoid(-3.404)]
    assert SwiGLUOAI()(rows)[0].numpy().tolist() == pytest.approx(want)


def test_swiglu_oai_is_clamped_at_seven() -> None:
    assert math.isclose(value(SwiGLUOAI(), 50.0, -50.0), -6.0 * 7.0 * sigmoid(1.702 * 7.0))


@pytest.mark.parametrize(
    ("gate", "up", "want"),
    [
        (7.005, 1.0, 7.005 * sigmoid(7.005)),
        (7.01, 1.0, 7.0),
        (50.0, 50.0, 49.0),
        (-3.0, -50.0, -3.0 * sigmoid(-3.0) * -7.0),
    ],
)
def test_swiglu_step_clamps_after_silu(gate: float, up: float, want: float) -> None:
    """A clamp before silu would give 7 * sigmoid(7) for the first two."""
    assert math.isclose(value(SwiGLUStep(), gate, up), want)


def test_gelu_by_hand() -> None:
    assert math.isclose(value(GELU(), 1.5, 2.0), 1.5 * 0.5 * (1 + math.erf(1.5 / 2**0.5)) * 2)


def test_gelu_tanh_by_hand() -> None:
    inner = math.sqrt(2 / math.pi) * (1.5 + 0.044715 * 1.5**3)
    assert math.isclose(value(GELUTanh(), 1.5, 2.0), 1.5 * 0.5 * (1 + math.tanh(inner)) * 2)
    assert not math.isclose(value(GELUTanh(), 1.5, 2.0), value(GELU(), 1.5, 2.0), rel_tol=1e-6)


def test_situ_by_hand() -> None:
    want = 4 * math.tanh(3 / 4) * sigmoid(3.0) * 25 * math.tanh(10 / 25)
    assert math.isclose(value(SiTU(), 3.0, 10.0), want)


def test_situ_never_exceeds_the_product_of_its_betas() -> None:
    assert math.isclose(value(SiTU(), 1e6, -1e6), -100.0)


def test_situ_is_swiglu_near_zero() -> None:
    assert math.isclose(value(SiTU(), 1e-3, 2e-3), value(SwiGLU(), 1e-3, 2e-3), rel_tol=1e-6)


def test_gate_comes_before_up_and_halves_are_contiguous() -> None:
    halves = torch.tensor([[1.0, 2.0, 10.0, 20.0]])
    out = SwiGLU()(halves)
    assert torch.allclose(out, torch.tensor([[sigmoid(1) * 10, 2 * sigmoid(2) * 20]]))


@pytest.mark.parametrize("activation", ALL, ids=str)
def test_no_activation_writes_into_what_it_reads(activation: Activation) -> None:
    rows = torch.linspace(-20, 20, 24).view(3, 8)
    before = rows.clone()
    assert activation(rows).shape == (3, 4)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("activation", ALL, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_an_activation_keeps_the_dtype_and_takes_no_rows(
    activation: Activation, dtype: torch.dtype
) -> None:
    assert activation(torch.ones((2, 6), dtype=dtype)).dtype == dtype
    none: Tensor = activation(torch.ones((0, 6), dtype=dtype))
    assert none.shape == (0, 3)


def test_all_formulas_differ() -> None:
    values = [value(activation, 1.5, 9.0) for activation in ALL]
    assert len({round(v, 6) for v in values}) == len(ALL)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("silu", SwiGLU()),
        ("swigluoai", SwiGLUOAI()),
        ("swiglustep", SwiGLUStep(7.0)),
        ("gelu", GELU()),
        ("gelu_tanh", GELUTanh()),
        ("situ", SiTU(4.0, 25.0)),
    ],
)
def test_a_known_name_is_its_formula(name: str, activation: Activation) -> None:
    assert activation_named(name) == activation


@pytest.mark.parametrize("name", ["", "swiglu", "SILU", "relu2", "swigluoai_uninterleave"])
def test_an_unknown_name_is_refused_and_never_becomes_swiglu(name: str) -> None:
    with pytest.raises(UnknownActivation, match="expected one of gelu, gelu_tanh, silu"):
        activation_named(name)


@pytest.mark.parametrize("bound", [0.0, -7.0, math.nan])
def test_a_bound_that_is_not_above_zero_is_refused(bound: float) -> None:
    with pytest.raises(ImpossibleActivation, match="above zero"):
        SwiGLU(limit=bound)
    with pytest.raises(ImpossibleActivation, match="above zero"):
        ClippedSwiGLU(alpha=1.0, beta=0.0, limit=bound)
    with pytest.raises(ImpossibleActivation, match="above zero"):
        SwiGLUStep(bound)
    with pytest.raises(ImpossibleActivation, match="above zero"):
        SiTU(beta=bound)


def test_an_alpha_or_beta_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ImpossibleActivation, match="finite"):
        ClippedSwiGLU(alpha=math.inf, beta=0.0, limit=1.0)
