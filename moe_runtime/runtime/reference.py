"""What every output must equal: the stack in float64, without slots, tables or exchange.

Axes    T tokens   L layers   E experts   D model width
        Z width of the routed part   I expert width   F = 2 I
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.experts.mlp import compute_dense
from moe_runtime.layer.parts import LayerWeights, rms_norm
from moe_runtime.routing.selector import Choice, select
from moe_runtime.runtime.batch import ByGate, ByLogits
from moe_runtime.runtime.model import Model

__all__ = ["DenseReference"]

_CHUNK = 64
"""Tokens at a time; bounds the memory of a step."""


@dataclass(frozen=True, slots=True, eq=False)
class _Experts:
    """All experts of a layer side by side, so that they are two products of matrices."""

    w13_HZ: Tensor
    """H = E F."""
    w2_GZ: Tensor
    """G = E I."""


class DenseReference:
    """All logical experts of a model in one process.

    It shares the selector and the activations with the runtime (those are held to values
    computed by hand), and nothing else of what placement could break.
    """

    def __init__(self, model: Model) -> None:
        shape = model.shape
        self._shape = shape
        self._layers = [model.layer(layer, torch.float64) for layer in range(shape.num_layers)]
        self._experts = [
            _side_by_side([model.expert(layer, e, torch.float64) for e in range(shape.num_experts)])
            for layer in range(shape.num_layers)
        ]

    def forward(self, x_TD: Tensor, router: ByGate | ByLogits) -> Tensor:
        """Return float64 [T, D] for tokens without padding."""
        x_TD = x_TD.to(torch.float64)
        for index, weights in enumerate(self._layers):
            normed_TD = rms_norm(x_TD)
            match router:
                case ByGate():
                    logits_TE = normed_TD @ weights.gate_ED.t()
                case ByLogits(logits_LTE):
                    logits_TE = logits_LTE[index].to(torch.float64)
            x_TD = x_TD + self._layer(weights, self._experts[index], normed_TD, logits_TE)
        return x_TD

    def _layer(
        self, weights: LayerWeights, experts: _Experts, x_TD: Tensor, logits_TE: Tensor
    ) -> Tensor:
        choice = select(
            logits_TE,
            self._shape.selector,
            correction_E=weights.correction_E,
            backend=CpuBackend(),
        )
        y_TD = weights.path.leave(self._routed(experts, weights.path.enter(x_TD), choice))
        for shared in weights.shared:
            y_TD = y_TD + compute_dense(x_TD, shared.w13_FD, shared.w2_DI, self._shape.activation)
        return y_TD

    def _routed(self, experts: _Experts, x_TZ: Tensor, choice: Choice) -> Tensor:
        """Run every token through every expert, and weigh those not chosen with zero."""
        weights_TE = x_TZ.new_zeros((x_TZ.shape[0], self._shape.num_experts))
        weights_TE.scatter_(1, choice.experts.ids_TK, choice.weights_TK)
        sums = [x_TZ.new_empty((0, x_TZ.shape[1]))]
        for chunk_TZ, chunk_TE in zip(
            split_rows(x_TZ, _CHUNK), split_rows(weights_TE, _CHUNK), strict=True
        ):
            gate_up_TH = chunk_TZ @ experts.w13_HZ.t()
            gate_up_TEF = gate_up_TH.view(*chunk_TE.shape, 2 * self._shape.intermediate)
            hidden_TEI = self._shape.activation(gate_up_TEF) * chunk_TE[:, :, None]
            sums.append(hidden_TEI.flatten(1) @ experts.w2_GZ)
        return torch.cat(sums)


def _side_by_side(experts: list[DenseWeights]) -> _Experts:
    return _Experts(
        torch.cat([e.w13_SFZ[0] for e in experts]),
        torch.cat([e.w2_SZI[0].t() for e in experts]),
    )
