"""Activations against values computed by hand."""

import math

import torch

from moe_runtime.experts.activations import Activation, SiTU, SwiGLU


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
