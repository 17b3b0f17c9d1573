"""From a model's weights to what a rank serves, in its format.

Axes    S local slots
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.weights import BiasedWeights, ExpertWeights
from moe_runtime.experts.activations import is_limited
from moe_runtime.formats.capabilities import Asked, DeviceKind, require
from moe_runtime.formats.packing import Packing, WeightFormat, dense_of, pack
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.placement.slots import EMPTY
from moe_runtime.runtime.model import Model, StackShape
from moe_runtime.runtime.traffic import Traffic

__all__ = ["load_slots", "require_modes", "served_expert", "served_layer"]


def served_expert(
    model: Model, which: tuple[int, int], packing: Packing, dtype: torch.dtype
) -> ExpertWeights:
    """Return one logical expert (layer, number) as it is served: stacks of one slot."""
    layer, expert = which
    plain = model.expert(layer, expert, torch.promote_types(dtype, torch.float32))
    weights = pack(plain, packing, dtype)
    if not model.shape.biased:
        return weights
    bias = model.bias(layer, expert, dtype)
    return BiasedWeights(weights, bias.gate_up_F[None], bias.down_Z[None])


def served_layer(model: Model, layer: int, dtype: torch.dtype) -> LayerWeights:
    """Return what a layer has beside its routed experts, as it is served."""
    packing = model.shape.shared_packing
    if packing.format is WeightFormat.UNQUANTISED:
        return model.layer(layer, dtype)
    wide = model.layer(layer, torch.promote_types(dtype, torch.float32)).shared
    packed = [
        replace(expert, weights=pack(dense_of(expert.weights), packing, dtype)) for expert in wide
    ]
    parts = model.layer(layer, dtype)
    gated = [
        replace(expert, gate=own.gate) for expert, own in zip(packed, parts.shared, strict=True)
    ]
    return replace(parts, shared=tuple(gated))


def load_slots(
    model: Model,
    layer: int,
    held_S: npt.NDArray[np.int64],
    served: tuple[Packing, torch.dtype],
) -> ExpertWeights:
    """Return one layer's slots filled with the experts that they hold."""
    stacks = served_expert(model, (layer, 0), *served).allocate(len(held_S))
    for slot, expert in enumerate(held_S.tolist()):
        if expert != EMPTY:
            loaded = served_expert(model, (layer, expert), *served).named()
            for name, stack in stacks.named().items():
                stack[slot].copy_(loaded[name][0])
    return stacks


def require_modes(
    shape: StackShape, mode: ExchangeMode | Traffic, dtype: torch.dtype, packing: Packing
) -> None:
    """Raise Unsupported unless every mode that may be chosen can serve; a table may choose any."""
    fixed = mode.mode if isinstance(mode, Traffic) else mode
    for served in (fixed,) if isinstance(fixed, ExchangeMode) else tuple(ExchangeMode):
        require(
            Asked(
                format=packing.format,
                dtype=dtype,
                mode=served.value,
                device=DeviceKind.CPU,
                activation=type(shape.activation).__name__,
                limited=is_limited(shape.activation),
                biased=shape.biased,
            )
        )
