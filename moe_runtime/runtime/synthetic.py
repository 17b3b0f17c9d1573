"""Deterministic weights for demos and tests.

Axes    X experts to choose from   D model width   Z width of the routed part
        I expert width   F = 2 I

Experts are drawn independently and scaled so that their outputs are several
units large: a token computed by a wrong expert is off by more than one, far
outside what rounding can do. All numbers are drawn as float32, so that a float64
reference computes with exactly the weights that a float32 run has.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moe_runtime.contracts.torch_calls import from_array
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.experts.shared import UNGATED, ExpertGate, SharedExpert, Ungated
from moe_runtime.layer.parts import (
    Direct,
    Latent,
    LayerWeights,
    NormedLatent,
    RoutedPath,
)
from moe_runtime.routing.kinds import (
    Corrected,
    HashRouting,
    HashTable,
    OnInputRouting,
    Uncorrected,
)
from moe_runtime.runtime.model import ExpertBias, StackShape

__all__ = ["SyntheticModel", "logical_weights"]

_GATE_UP_GAIN = 2.0
_DOWN_GAIN = 16.0
_NORMED_UP_GAIN = 16.0
"""After a norm the experts' own size is gone, so the projection up restores it."""
_LAYER = 1 << 40
"""Beyond every expert number: keys the draws of what a layer has beside its experts."""
_TABLE = _LAYER + 1
_BIAS = _LAYER + 2
_SHARED = _LAYER + 3


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """Meets `Model`: every weight is a function of seed, layer and expert."""

    shape: StackShape
    seed: int = 0
    gates_shared: bool = False
    """Whether each shared expert has a gate."""

    def layer(self, layer: int, dtype: torch.dtype) -> LayerWeights:
        """Return gate, router tensors, latent projections and shared experts of a layer."""
        shape = self.shape
        draw = np.random.default_rng((self.seed, layer, _LAYER))
        gate_XD = _matrix(draw, shape.num_candidates, shape.width, gain=2.0).to(dtype)
        correction_X = _matrix(draw, 1, shape.num_candidates, gain=0.1)[0].to(dtype)
        path = _path(draw, shape, dtype)
        shared = tuple(
            SharedExpert(
                DenseWeights(
                    _matrix(draw, 2 * shape.intermediate, shape.width, gain=1.0)[None].to(dtype),
                    _matrix(draw, shape.width, shape.intermediate, gain=1.0)[None].to(dtype),
                ),
                self._expert_gate(layer, number, dtype),
            )
            for number in range(shape.num_shared)
        )
        router = Corrected(correction_X) if shape.corrected else self._table(layer)
        return LayerWeights(gate_XD, router, path, shared)

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        """Return one logical expert, as stacks of one slot."""
        return logical_weights(self.shape, seed=self.seed, layer=layer, expert=expert, dtype=dtype)

    def bias(self, layer: int, expert: int, dtype: torch.dtype) -> ExpertBias:
        """Return the biases of one logical expert, as large as what they are added to."""
        shape = self.shape
        draw = np.random.default_rng((self.seed, layer, expert, _BIAS))
        gate_up_F = _matrix(draw, 1, 2 * shape.intermediate, gain=np.sqrt(2 * shape.intermediate))
        down_Z = _matrix(draw, 1, shape.routed_width, gain=np.sqrt(shape.routed_width))
        return ExpertBias(gate_up_F[0].to(dtype), down_Z[0].to(dtype))

    def _expert_gate(self, layer: int, number: int, dtype: torch.dtype) -> Ungated | ExpertGate:
        if not self.gates_shared:
            return UNGATED
        draw = np.random.default_rng((self.seed, layer, number, _SHARED))
        return ExpertGate(_matrix(draw, 1, self.shape.width, gain=1.0).to(dtype))

    def _table(self, layer: int) -> Uncorrected | HashTable:
        """Return distinct experts at random for each token id, where the model has a table."""
        selector = self.shape.selector
        by = selector.by if isinstance(selector, OnInputRouting) else selector
        if not isinstance(by, HashRouting):
            return Uncorrected()
        draw = np.random.default_rng((self.seed, layer, _TABLE))
        rows = [draw.permutation(by.num_experts)[: by.top_k] for _ in range(by.vocabulary)]
        return HashTable(from_array(np.stack(rows).astype(np.int32)))


def logical_weights(
    shape: StackShape, *, seed: int, layer: int, expert: int, dtype: torch.dtype
) -> DenseWeights:
    """Return the weights of one logical expert, as stacks of one slot."""
    draw = np.random.default_rng((seed, layer, expert))
    z, i = shape.routed_width, shape.intermediate
    w13 = _matrix(draw, 2 * i, z, gain=_GATE_UP_GAIN)
    w2 = _matrix(draw, z, i, gain=_DOWN_GAIN)
    return DenseWeights(w13[None].to(dtype), w2[None].to(dtype))


def _path(draw: np.random.Generator, shape: StackShape, dtype: torch.dtype) -> RoutedPath:
    if shape.latent is None:
        return Direct()
    z, d = shape.latent.width, shape.width
    down_ZD = _matrix(draw, z, d, gain=1.0).to(dtype)
    if not shape.latent.normed:
        return Latent(down_ZD, _matrix(draw, d, z, gain=1.0).to(dtype))
    norm_Z = (1 + _matrix(draw, 1, z, gain=0.1)[0]).to(dtype)
    return NormedLatent(down_ZD, norm_Z, _matrix(draw, d, z, gain=_NORMED_UP_GAIN).to(dtype))


def _matrix(draw: np.random.Generator, rows: int, columns: int, *, gain: float) -> Tensor:
    """Return a float32 matrix that turns inputs of size one into outputs of size `gain`."""
    values = draw.standard_normal((rows, columns), dtype=np.float32)
    return from_array(values * np.float32(gain / np.sqrt(columns)))
