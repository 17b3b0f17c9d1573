"""What a layer has beside its routed experts, the same on every rank.

Axes    T tokens   D model width   Z width of the routed part
        X experts to choose from: the routed ones, then any zero experts
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from moe_runtime.experts.shared import ExpertGate, SharedExpert, Ungated
from moe_runtime.routing.kinds import RouterTensors

__all__ = [
    "Direct",
    "Latent",
    "LayerWeights",
    "NormedLatent",
    "RoutedPath",
    "rms_norm",
]

_EPS = 1e-6


class RoutedPath(Protocol):
    """What surrounds the routed part of a layer."""

    def enter(self, x_TD: Tensor) -> Tensor:
        """Return [T, Z]: tokens as the experts read them."""
        ...

    def leave(self, y_TZ: Tensor) -> Tensor:
        """Return [T, D]: the summed experts as the model reads them."""
        ...


@dataclass(frozen=True, slots=True)
class Direct:
    """Experts work at the model's own width."""

    def enter(self, x_TD: Tensor) -> Tensor:
        """Return the tokens as they are."""
        return x_TD

    def leave(self, y_TZ: Tensor) -> Tensor:
        """Return the sum as it is."""
        return y_TZ


@dataclass(frozen=True, slots=True, eq=False)
class Latent:
    """Experts work in a latent: projected down before, and up after the sum."""

    down_ZD: Tensor
    up_DZ: Tensor

    def enter(self, x_TD: Tensor) -> Tensor:
        """Project down."""
        return x_TD @ self.down_ZD.t()

    def leave(self, y_TZ: Tensor) -> Tensor:
        """Project up."""
        return y_TZ @ self.up_DZ.t()


@dataclass(frozen=True, slots=True, eq=False)
class NormedLatent:
    """Kimi K3's latent: the sum over experts is RMS-normalised before it is projected up."""

    down_ZD: Tensor
    norm_Z: Tensor
    up_DZ: Tensor

    def enter(self, x_TD: Tensor) -> Tensor:
        """Project down."""
        return x_TD @ self.down_ZD.t()

    def leave(self, y_TZ: Tensor) -> Tensor:
        """Normalise, weigh and project up."""
        return (rms_norm(y_TZ) * self.norm_Z) @ self.up_DZ.t()


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """Everything a layer has beside its routed experts."""

    gate_XD: Tensor
    """The router: it reads the full hidden state, also where experts work in a latent, and its
    logits are computed in the model's dtype."""
    router: RouterTensors
    """What the router has beside its gate."""
    path: RoutedPath
    shared: tuple[SharedExpert, ...]
    """Beside the slots of each rank."""
    in_slots: tuple[Ungated | ExpertGate, ...] = ()
    """The gates of shared experts that sit in slots."""


def rms_norm(x_TD: Tensor) -> Tensor:
    """Return each row divided by its root mean square, without a weight.

    Computed in float32 or better: in float16 the square of 256 is infinite, and the row zero.
    """
    wide_TD = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    normed_TD = wide_TD * torch.rsqrt(wide_TD.square().mean(dim=1, keepdim=True) + _EPS)
    return normed_TD.to(x_TD.dtype)
