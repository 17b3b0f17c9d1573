"""From a model's weights to what a rank serves, in its format.

Axes    S local slots
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.weights import (
    BiasedWeights,
    DenseWeights,
    ExpertWeights,
    PlainExpertWeights,
    ReadableWeights,
)
from moe_runtime.exchange.choosing import Capability
from moe_runtime.experts.activations import is_limited
from moe_runtime.experts.shared import SharedExpert
from moe_runtime.formats.capabilities import Asked, DeviceKind, require
from moe_runtime.formats.fusing import fused
from moe_runtime.formats.packing import Packing, WeightFormat, dense_of, pack
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.placement.slots import EMPTY
from moe_runtime.runtime.device import Device
from moe_runtime.runtime.fitting import (
    require_bias,
    require_expert,
    require_finite,
    require_layer,
    require_told_apart,
)
from moe_runtime.runtime.marks import mark_of_expert
from moe_runtime.runtime.model import Model, SharedInSlots, StackShape
from moe_runtime.runtime.surroundings import lasting
from moe_runtime.runtime.traffic import ByTable, Traffic

__all__ = [
    "ServedAs",
    "at_home",
    "load_slots",
    "marks_of_kept",
    "require_modes",
    "served_as",
    "served_expert",
    "served_layer",
]

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class ServedAs:
    """How a deployment serves the experts in its slots."""

    packing: Packing
    dtype: torch.dtype
    is_fused: bool
    """Whether a step may be exchanged by fused MC2, which reads scales of its own."""


def served_as(traffic: Traffic, packing: Packing, dtype: torch.dtype) -> ServedAs:
    """Return how experts are served where tokens are exchanged in this way."""
    return ServedAs(packing, dtype, ExchangeMode.FUSED_MC2 in tuple(_may_be_chosen(traffic)))


@lasting()
def served_expert(model: Model, which: tuple[int, int], served: ServedAs) -> ExpertWeights:
    """Return one expert (layer, number), shared ones from E on, as slots hold it: of one slot.

    Raises ShapeMismatch for one that the model has not.
    """
    layer, expert = which
    num_layers = model.shape.num_layers
    num_experts = model.shape.num_experts + model.shape.num_shared_in_slots
    if not (0 <= layer < num_layers and 0 <= expert < num_experts):
        raise ShapeMismatch(
            f"expert {expert} of layer {layer}",
            got=(),
            expected=f"one of {num_experts} in one of {num_layers} layers",
        )
    wide = torch.promote_types(served.dtype, torch.float32)
    if expert >= model.shape.num_experts:
        weights = _shared(model, which, served)
    else:
        dense = model.expert(layer, expert, wide)
        what = f"expert {expert} of layer {layer}"
        require_expert(model.shape, dense, what=what, width=model.shape.routed_width)
        is_plain = served.packing.format is WeightFormat.UNQUANTISED
        require_finite(dense, served.dtype if is_plain else torch.float32, what=what)
        plain = _packed(dense, served.packing, served.dtype, what=what)
        weights = _with_biases(model, which, plain, served.dtype) if model.shape.biased else plain
    return fused(weights) if served.is_fused else weights


def _packed(
    dense: DenseWeights, packing: Packing, dtype: torch.dtype, *, what: str
) -> PlainExpertWeights:
    """Return the weights of a format; raises ShapeMismatch where it has no such scales."""
    packed = pack(dense, packing, dtype)
    require_finite(packed, torch.float32, what=what)
    stored = {WeightFormat.UNQUANTISED: dtype, WeightFormat.W4A16: dtype}
    stored[WeightFormat.W4A8] = torch.float16
    if packing.format in stored:  # the others have scales in float32, or powers of two
        require_told_apart(dense, packed, stored[packing.format], what=what)
    return packed


def _with_biases(
    model: Model, which: tuple[int, int], weights: PlainExpertWeights, dtype: torch.dtype
) -> BiasedWeights:
    bias = model.bias(*which, dtype)
    require_bias(model.shape, bias, dtype, what=f"expert {which[1]} of layer {which[0]}")
    return BiasedWeights(weights, bias.gate_up_F[None], bias.down_Z[None])


def _shared(model: Model, which: tuple[int, int], served: ServedAs) -> ReadableWeights:
    """Return a shared expert as a slot holds it: like a routed one, with zeros for biases."""
    layer, expert = which
    shape, dtype = model.shape, served.dtype
    kept = _brought(model, layer, torch.promote_types(dtype, torch.float32)).shared
    dense = dense_of(kept[expert - shape.num_experts].weights)
    what = f"shared expert {expert - shape.num_experts} of layer {layer}"
    weights = _packed(dense, served.packing, dtype, what=what)
    if not shape.biased:
        return weights
    none_F = torch.zeros((1, 2 * shape.intermediate), dtype=dtype)
    return BiasedWeights(weights, none_F, torch.zeros((1, shape.routed_width), dtype=dtype))


def served_layer(model: Model, layer: int, dtype: torch.dtype) -> LayerWeights:
    """Return what a layer has beside the experts in its slots, as it is served."""
    packing = model.shape.shared_packing
    parts = _brought(model, layer, dtype)
    if isinstance(packing, SharedInSlots):
        return replace(parts, shared=(), in_slots=tuple(expert.gate for expert in parts.shared))
    if packing.format is WeightFormat.UNQUANTISED:
        return parts
    wide = _brought(model, layer, torch.promote_types(dtype, torch.float32)).shared
    packed: list[SharedExpert] = []
    for number, expert in enumerate(wide):
        what = f"shared expert {number} of layer {layer}"
        weights = _packed(dense_of(expert.weights), packing, dtype, what=what)
        packed.append(replace(expert, weights=weights))
    gated = [
        replace(expert, gate=own.gate) for expert, own in zip(packed, parts.shared, strict=True)
    ]
    return replace(parts, shared=tuple(gated))


def _brought(model: Model, layer: int, dtype: torch.dtype) -> LayerWeights:
    parts = model.layer(layer, dtype)
    require_layer(model.shape, layer, parts, dtype)
    return parts


def load_slots(
    model: Model,
    layer: int,
    held_S: npt.NDArray[np.int64],
    served: ServedAs,
    *,
    home: torch.device,
) -> tuple[ExpertWeights, dict[int, int]]:
    """Return one layer's slots, at home, filled with the experts that they hold.

    Beside them, by its number, a checksum of each expert that was read: those, and the first.

    Raises ShapeMismatch for an expert of another size: a copy would spread a smaller tensor over a
    larger one without a word.
    """
    first = served_expert(model, (layer, 0), served)
    marks = {0: mark_of_expert(first.named())}
    stacks = at_home(first, home).allocate(len(held_S))
    for slot, expert in enumerate(held_S.tolist()):
        if expert != EMPTY:
            loaded = served_expert(model, (layer, expert), served).named()
            if expert not in marks:
                marks[expert] = mark_of_expert(loaded)
            for name, stack in stacks.named().items():
                stack[slot].copy_(loaded[name][0].detach())
    return stacks, marks


def marks_of_kept(stacks: ExpertWeights, held_S: npt.NDArray[np.int64]) -> dict[int, int]:
    """Return a checksum of each expert in slots that were filled before, by its number."""
    named = stacks.named()
    return {
        expert: mark_of_expert({name: stack[slot] for name, stack in named.items()})
        for slot, expert in enumerate(held_S.tolist())
        if expert != EMPTY
    }


def at_home(weights: P, home: torch.device) -> P:
    """Return copies of parts of a model in a device's memory.

    Copies, since a model's owner may go on to use its tensors; and none of them tracks gradients.
    """
    if isinstance(weights, Tensor):
        return cast("P", weights.detach().to(home, copy=True))
    if isinstance(weights, tuple):
        return cast("P", tuple(at_home(part, home) for part in cast("tuple[object]", weights)))
    if is_dataclass(weights) and not isinstance(weights, type):
        parts = {f.name: at_home(getattr(weights, f.name), home) for f in fields(weights)}
        return replace(weights, **parts)
    return weights


def require_modes(
    shape: StackShape, traffic: Traffic, device: Device, *, dtype: torch.dtype, packing: Packing
) -> None:
    """Raise Unsupported unless every mode that may be chosen can serve."""
    beside = _table_refusals(traffic.mode, device, packing)
    for mode in _may_be_chosen(traffic):
        asked = Asked(
            format=packing.format,
            dtype=dtype,
            mode=mode.value,
            device=device.kind,
            activation=type(shape.activation).__name__,
            limited=is_limited(shape.activation),
            biased=shape.biased,
            lora=traffic.num_adapters > 0,
        )
        unbuilt = device.refusals(replace(traffic, mode=mode))
        if shape.num_shared_in_slots and traffic.num_adapters:
            unbuilt = (*unbuilt, "shared experts in slots have no adapters")
        require(asked, also=(*beside, *unbuilt))


def _table_refusals(
    mode: ExchangeMode | ByTable, device: Device, packing: Packing
) -> tuple[str, ...]:
    """Return where a table was asked for another deployment than the one that is loaded."""
    if isinstance(mode, ExchangeMode):
        return ()
    reasons: list[str] = []
    if device.kind is not DeviceKind.CPU and mode.soc.name != device.kind.name:
        reasons.append(
            f"the table is asked for {mode.soc.value}, but the device is {device.kind.value}"
        )
    if mode.format != packing.format.value:
        reasons.append(
            f"the table is asked for {mode.format} weights, but {packing.format.value} are loaded"
        )
    return tuple(reasons)


def _may_be_chosen(traffic: Traffic) -> Iterator[ExchangeMode]:
    """Yield the modes of which a step may take one."""
    match traffic.mode:
        case ExchangeMode():
            yield traffic.mode
        case ByTable(override=ExchangeMode() as chosen):
            yield chosen
        case ByTable(capabilities=there):
            yield from (ExchangeMode.ALL_GATHER, ExchangeMode.ALL_TO_ALL)
            if traffic.num_adapters:
                return  # the table exchanges adapted rows by no other
            if Capability.MC2 in there:
                yield ExchangeMode.MC2
            if Capability.FUSED_MC2 in there:
                yield ExchangeMode.FUSED_MC2
