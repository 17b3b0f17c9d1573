"""What every output must equal: the stack in float64, without slots, tables or exchange.

Axes    T tokens   L layers   E experts   X experts to choose from   D model width
        Z width of the routed part   I expert width   F = 2 I
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.gating import Choice
from moe_runtime.contracts.tokens import NO_TOKEN_IDS, NoTokenIds, TokenIds
from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.experts.activations import Activation
from moe_runtime.experts.mlp import compute_dense
from moe_runtime.experts.shared import ExpertGate, SharedExpert, Ungated
from moe_runtime.formats.packing import dense_of
from moe_runtime.layer.parts import LayerWeights, rms_norm
from moe_runtime.routing.kinds import OnInputRouting
from moe_runtime.routing.router import GatingPath, RouterInput, bind
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
    bias13_H: Tensor
    bias2_EZ: Tensor


class DenseReference:
    """All logical experts of a model in one process.

    It shares the routers and the activations with the runtime (those are held to values
    computed by hand; scores are always judged by the reference selector), and nothing else of
    what placement could break. What becomes of a choice (weights on the input, zero experts) is
    written out here a second time.
    """

    def __init__(self, model: Model) -> None:
        shape = model.shape
        self._shape = shape
        self._layers = [model.layer(layer, torch.float64) for layer in range(shape.num_layers)]
        self._experts = [_side_by_side(model, layer) for layer in range(shape.num_layers)]

    def forward(
        self,
        x_TD: Tensor,
        router: ByGate | ByLogits,
        token_ids: NoTokenIds | TokenIds = NO_TOKEN_IDS,
    ) -> Tensor:
        """Return float64 [T, D] for tokens without padding."""
        x_TD = x_TD.to(torch.float64)
        for index, weights in enumerate(self._layers):
            normed_TD = rms_norm(x_TD)
            match router:
                case ByGate():
                    logits_TX = normed_TD @ weights.gate_XD.t()
                case ByLogits(logits_LTE):
                    logits_TX = logits_LTE[index].to(torch.float64)
            given = RouterInput(normed_TD, logits_TX, token_ids)
            x_TD = x_TD + self._layer(weights, self._experts[index], given)
        return x_TD

    def _layer(self, weights: LayerWeights, experts: _Experts, given: RouterInput) -> Tensor:
        router = bind(self._shape.selector, weights.router, path=GatingPath.REFERENCE)
        choice = router.choose(given, CpuBackend())
        y_TZ = self._routed(experts, weights.path.enter(given.x_TD), choice)
        y_TD = weights.path.leave(y_TZ)
        for shared in weights.shared:
            y_TD = y_TD + _shared(given.x_TD, shared, self._shape.activation)
        return y_TD

    def _routed(self, experts: _Experts, x_TZ: Tensor, choice: Choice) -> Tensor:
        """Run every token through every expert, and weigh those not chosen with zero."""
        weights_TX = x_TZ.new_zeros((x_TZ.shape[0], self._shape.num_candidates))
        weights_TX.scatter_(1, choice.experts.ids_TK, choice.weights_TK)
        if isinstance(self._shape.selector, OnInputRouting):
            x_TZ, weights_TX = x_TZ * weights_TX.sum(dim=1, keepdim=True), weights_TX.sign()
        num_experts = self._shape.num_experts
        kept_TZ = x_TZ * weights_TX[:, num_experts:].sum(dim=1, keepdim=True)
        return kept_TZ + self._computed(experts, x_TZ, weights_TX[:, :num_experts])

    def _computed(self, experts: _Experts, x_TZ: Tensor, weights_TE: Tensor) -> Tensor:
        sums = [x_TZ.new_empty((0, x_TZ.shape[1]))]
        for chunk_TZ, chunk_TE in zip(
            split_rows(x_TZ, _CHUNK), split_rows(weights_TE, _CHUNK), strict=True
        ):
            gate_up_TH = chunk_TZ @ experts.w13_HZ.t() + experts.bias13_H
            gate_up_TEF = gate_up_TH.view(*chunk_TE.shape, 2 * self._shape.intermediate)
            hidden_TEI = self._shape.activation(gate_up_TEF) * chunk_TE[:, :, None]
            sums.append(hidden_TEI.flatten(1) @ experts.w2_GZ + chunk_TE @ experts.bias2_EZ)
        return torch.cat(sums)


def _shared(x_TD: Tensor, expert: SharedExpert, activation: Activation) -> Tensor:
    dense = dense_of(expert.weights)
    y_TD = compute_dense(x_TD, dense.w13_SFZ[0], dense.w2_SZI[0], activation)
    match expert.gate:
        case Ungated():
            return y_TD
        case ExpertGate(gate_1D):
            return y_TD * torch.sigmoid(x_TD @ gate_1D.t())


def _side_by_side(model: Model, layer: int) -> _Experts:
    wide, numbers = torch.float64, range(model.shape.num_experts)
    experts = [model.expert(layer, e, wide) for e in numbers]
    w13_HZ = torch.cat([e.w13_SFZ[0] for e in experts])
    w2_GZ = torch.cat([e.w2_SZI[0].t() for e in experts])
    if not model.shape.biased:
        none = w2_GZ.new_zeros((len(experts), w2_GZ.shape[1]))
        return _Experts(w13_HZ, w2_GZ, w13_HZ.new_zeros(len(w13_HZ)), none)
    biases = [model.bias(layer, e, wide) for e in numbers]
    return _Experts(
        w13_HZ,
        w2_GZ,
        torch.cat([bias.gate_up_F for bias in biases]),
        torch.stack([bias.down_Z for bias in biases]),
    )
