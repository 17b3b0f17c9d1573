"""The gated activations, one type per formula.

Axes, after any others:    F = 2 I gate and up   I expert width

    halves         F is the gate half, then the up half
    interleaved    F is gate, up, gate, up, ...

Every parameter that a formula has is a field of its type and is honoured; a formula without
a limit has no field for one. A name that no type belongs to is refused by `activation_named`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from moe_runtime.contracts.errors import ImpossibleActivation, UnknownActivation

__all__ = [
    "GELU",
    "Activation",
    "ClippedSwiGLU",
    "GELUTanh",
    "SiTU",
    "SwiGLU",
    "SwiGLUOAI",
    "SwiGLUStep",
    "activation_named",
    "is_limited",
]


@dataclass(frozen=True, slots=True)
class SwiGLU:
    """silu(gate) * up, clamped before: gate from above, up from both sides."""

    limit: float = math.inf

    def __post_init__(self) -> None:
        _refuse_limit(self, self.limit)

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F.chunk(2, dim=-1)
        if self.limit != math.inf:
            gate_I, up_I = _clamped(gate_I, up_I, self.limit)
        return silu(gate_I) * up_I


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSwiGLU:
    """(up + beta) * gate * sigmoid(alpha * gate), clamped before, over halves.

    No parameter has a default: what operators and callers assume differs (1.702 and 1 in
    npu_clipped_swiglu, 1 and 0 in its callers), so a model must say what it was trained with.
    """

    alpha: float
    beta: float
    limit: float

    def __post_init__(self) -> None:
        _refuse_limit(self, self.limit)
        if not (math.isfinite(self.alpha) and math.isfinite(self.beta)):
            raise ImpossibleActivation(f"{self} needs a finite alpha and beta")

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F.chunk(2, dim=-1)
        return _clipped(gate_I, up_I, alpha=self.alpha, beta=self.beta, limit=self.limit)


@dataclass(frozen=True, slots=True)
class SwiGLUOAI:
    """gpt-oss's: (up + 1) * gate * sigmoid(1.702 * gate), clamped at 7 before, interleaved."""

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F[..., ::2], gate_up_F[..., 1::2]
        return _clipped(gate_I, up_I, alpha=1.702, beta=1.0, limit=7.0)


@dataclass(frozen=True, slots=True)
class SwiGLUStep:
    """min(silu(gate), limit) * clamped up: the gate is clamped after silu, not before."""

    limit: float = 7.0

    def __post_init__(self) -> None:
        _refuse_limit(self, self.limit)

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F.chunk(2, dim=-1)
        return silu(gate_I).clamp(max=self.limit) * up_I.clamp(min=-self.limit, max=self.limit)


@dataclass(frozen=True, slots=True)
class GELU:
    """gelu(gate) * up, gelu by the normal distribution itself."""

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F.chunk(2, dim=-1)
        return gelu(gate_I) * up_I


@dataclass(frozen=True, slots=True)
class GELUTanh:
    """gelu(gate) * up, gelu by its approximation with tanh."""

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F.chunk(2, dim=-1)
        return gelu(gate_I, approximate="tanh") * up_I


@dataclass(frozen=True, slots=True)
class SiTU:
    """The sigmoid-tanh unit of Kimi K3: near zero it is SwiGLU, far out it saturates.

        beta * tanh(gate / beta) * sigmoid(gate)  *  linear_beta * tanh(up / linear_beta)

    so that no output exceeds beta * linear_beta. The formula is that of `SituAndMul` in
    Moonshot's published modeling_kimi_linear.py, with K3's constants
    (activation_situ_beta 4, activation_situ_linear_beta 25).
    """

    beta: float = 4.0
    linear_beta: float = 25.0

    def __post_init__(self) -> None:
        _refuse_limit(self, self.beta)
        _refuse_limit(self, self.linear_beta)

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F.chunk(2, dim=-1)
        # In place where a tensor is nobody else's: the same products, in the same order.
        bounded = torch.tanh(gate_I / self.beta).mul_(self.beta).mul_(torch.sigmoid(gate_I))
        return bounded.mul_(self.linear_beta).mul_(torch.tanh(up_I / self.linear_beta))


Activation = SwiGLU | ClippedSwiGLU | SwiGLUOAI | SwiGLUStep | GELU | GELUTanh | SiTU

_BY_NAME: MappingProxyType[str, Callable[[], Activation]] = MappingProxyType(
    {
        "silu": SwiGLU,
        "swigluoai": SwiGLUOAI,
        "swiglustep": SwiGLUStep,
        "gelu": GELU,
        "gelu_tanh": GELUTanh,
        "situ": SiTU,
    }
)


def activation_named(name: str) -> Activation:
    """Return what a model's configuration calls `name`, with the formula's own constants.

    `swigluoai_uninterleave` is refused like an unknown name, since it has no constants of its
    own: build a ClippedSwiGLU from the model's alpha, beta and limit.

    Raises UnknownActivation.

    >>> activation_named("gelu_tanh")
    GELUTanh()
    """
    if name not in _BY_NAME:
        raise UnknownActivation(name, known=sorted(_BY_NAME))
    return _BY_NAME[name]()


def is_limited(activation: Activation) -> bool:
    """Tell whether it clamps what it is given.

    >>> is_limited(SwiGLU()), is_limited(SwiGLU(7.0))
    (False, True)
    """
    match activation:
        case SwiGLU(limit) | ClippedSwiGLU(limit=limit) | SwiGLUStep(limit):
            return limit != math.inf
        case SwiGLUOAI():
            return True
        case GELU() | GELUTanh() | SiTU():
            return False


def _clipped(gate_I: Tensor, up_I: Tensor, *, alpha: float, beta: float, limit: float) -> Tensor:
    gate_I, up_I = _clamped(gate_I, up_I, limit)
    return (up_I + beta) * gate_I * torch.sigmoid(alpha * gate_I)


def _clamped(gate_I: Tensor, up_I: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Return the gate bounded from above and the up part from both sides; nothing in place."""
    return gate_I.clamp(max=limit), up_I.clamp(min=-limit, max=limit)


def _refuse_limit(activation: object, limit: float) -> None:
    if not limit > 0:
        raise ImpossibleActivation(
            f"{activation} needs bounds above zero; without one, leave it out"
        )
