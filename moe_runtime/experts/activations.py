"""The gated activations.

Axes, after any others:    F = 2 I gate half, then up half   I expert width
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

__all__ = ["Activation", "SiTU", "SwiGLU"]


@dataclass(frozen=True, slots=True)
class SwiGLU:
    """silu(gate) * up, clamped before: gate from above, up from both sides."""

    limit: float = float("inf")

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F.chunk(2, dim=-1)
        if self.limit != float("inf"):
            gate_I = gate_I.clamp(max=self.limit)
            up_I = up_I.clamp(min=-self.limit, max=self.limit)
        return silu(gate_I) * up_I


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

    def __call__(self, gate_up_F: Tensor) -> Tensor:
        """Return [..., I]."""
        gate_I, up_I = gate_up_F.chunk(2, dim=-1)
        bounded = self.beta * torch.tanh(gate_I / self.beta) * torch.sigmoid(gate_I)
        return bounded * self.linear_beta * torch.tanh(up_I / self.linear_beta)


Activation = SwiGLU | SiTU
"""An unknown name has no type here, so it can never fall through to a default."""
