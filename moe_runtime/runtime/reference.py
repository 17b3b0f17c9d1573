"""What every output must equal: the stack in float64, without slots, tables or exchange.

Axes    T tokens   K experts per token   L layers   E experts   D model width
        Z width of the routed part   I expert width   F = 2 I
"""

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
"""Token-expert pairs whose weights are gathered at a time; bounds the memory of a step."""


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
            _stack([model.expert(layer, e, torch.float64) for e in range(shape.num_experts)])
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
        self, weights: LayerWeights, experts: DenseWeights, x_TD: Tensor, logits_TE: Tensor
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

    def _routed(self, experts: DenseWeights, x_TZ: Tensor, choice: Choice) -> Tensor:
        """Give every pair of token and expert its own copy of the weights, and sum over K."""
        num_tokens, top_k = choice.weights_TK.shape
        pairs = torch.arange(num_tokens * top_k)
        outs = [x_TZ.new_empty((0, x_TZ.shape[1]))]
        for chunk in split_rows(pairs, _CHUNK):
            ids = choice.experts.ids_TK.reshape(-1)[chunk]
            x = x_TZ[chunk // top_k][:, :, None]
            hidden = self._shape.activation((experts.w13_SFZ[ids] @ x)[:, :, 0])
            outs.append((experts.w2_SZI[ids] @ hidden[:, :, None])[:, :, 0])
        out_TKZ = torch.cat(outs).view(num_tokens, top_k, x_TZ.shape[1])
        return (out_TKZ * choice.weights_TK[:, :, None]).sum(dim=1)


def _stack(experts: list[DenseWeights]) -> DenseWeights:
    return DenseWeights(
        torch.cat([e.w13_SFZ for e in experts]), torch.cat([e.w2_SZI for e in experts])
    )
