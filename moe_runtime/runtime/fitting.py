"""Whether what a model brings is what its shape says; else it would be spread, cut or left out.

Axes    X experts to choose from   D model width   Z width of the routed part   I expert width
        F = 2 I   S slots
"""

import torch
from torch import Tensor

from moe_runtime.contracts.errors import ImpossibleRouting, ShapeMismatch
from moe_runtime.contracts.weights import DenseWeights, StackedWeights
from moe_runtime.experts.shared import ExpertGate, SharedExpert
from moe_runtime.formats.capabilities import DTYPES
from moe_runtime.formats.packing import dense_of
from moe_runtime.layer.parts import Direct, Latent, LayerWeights, NormedLatent, RoutedPath
from moe_runtime.routing.kinds import Corrected
from moe_runtime.runtime.model import ExpertBias, StackShape

__all__ = [
    "require_bias",
    "require_expert",
    "require_finite",
    "require_layer",
    "require_numbers",
    "require_told_apart",
]

_LEAST_STEPS = 8
"""Of a dtype, in the largest number of a matrix: half a step is a sixteenth of it at most."""


def require_expert(shape: StackShape, weights: DenseWeights, *, what: str, width: int) -> None:
    """Raise ShapeMismatch unless weights are those of one expert.

    width    of what the expert reads: Z, or D for one that is shared
    """
    inner = shape.intermediate
    _require(f"w13 of {what}", weights.w13_SFZ, (1, 2 * inner, width))
    _require(f"w2 of {what}", weights.w2_SZI, (1, width, inner))
    for name, stack in (("w13", weights.w13_SFZ), ("w2", weights.w2_SZI)):
        if stack.dtype not in DTYPES:
            raise ShapeMismatch(
                f"{name} of {what}, of {stack.dtype}",
                got=stack.shape,
                expected=f"one of {[*DTYPES]}",
            )


def require_finite(weights: StackedWeights, dtype: torch.dtype, *, what: str) -> None:
    """Raise ShapeMismatch for weights that are no numbers, or infinite once they are in a dtype.

    Formats of a few bits have no place for those: they would become some number or other.
    """
    for name, stack in weights.named().items():
        if stack.is_floating_point():
            _require_finite(f"{name} of {what}", stack, dtype)


def require_told_apart(
    dense: DenseWeights, packed: StackedWeights, dtype: torch.dtype, *, what: str
) -> None:
    """Raise ShapeMismatch for matrices that are too small for what is stored of them.

    dtype    has all numbers that are stored: of weights as they are, or of int4's scales

    A matrix goes by its largest number: what is next to nothing beside that may come to nothing.
    """
    least = _LEAST_STEPS * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    stored = packed.named()
    for name, whole in dense.named().items():
        kept = f"{name}_scale" if f"{name}_scale" in stored else name
        if bool(whole.any()) and float(stored[kept].abs().max()) < least:
            raise ShapeMismatch(
                f"{kept} of {what}, too small for {dtype},",
                got=whole.shape,
                expected=f"numbers up to {least:.1e} or more there, or another format or dtype",
            )


def require_numbers(what: str, given: Tensor, dtype: torch.dtype) -> None:
    """Raise ShapeMismatch unless a tensor is of floats that are finite once they are in a dtype."""
    if given.dtype not in DTYPES:
        raise ShapeMismatch(
            f"{what}, of {given.dtype},", got=given.shape, expected=f"one of {[*DTYPES]}"
        )
    _require_finite(what, given, dtype)


def require_bias(shape: StackShape, bias: ExpertBias, dtype: torch.dtype, *, what: str) -> None:
    """Raise ShapeMismatch unless there is a number for each output of both linears."""
    _require_plain(f"gate_up bias of {what}", bias.gate_up_F, (2 * shape.intermediate,), dtype)
    _require_plain(f"down bias of {what}", bias.down_Z, (shape.routed_width,), dtype)


def require_layer(shape: StackShape, layer: int, parts: LayerWeights, dtype: torch.dtype) -> None:
    """Raise ShapeMismatch or ImpossibleRouting unless a layer has what the shape says it has.

    dtype    in which the layer was asked for
    """
    gate = (shape.num_candidates, shape.width)
    _require_plain(f"gate of layer {layer}", parts.gate_XD, gate, dtype)
    if isinstance(parts.router, Corrected) is not shape.corrected:
        raise ImpossibleRouting(
            f"layer {layer} brings {type(parts.router).__name__} router tensors, and the model is "
            f"said to be {'corrected' if shape.corrected else 'uncorrected'}; nothing was loaded"
        )
    _require_path(shape, layer, parts, dtype)
    if parts.in_slots:
        raise ShapeMismatch(
            f"gates in slots of layer {layer}",
            got=(len(parts.in_slots),),
            expected="none: the gate of a shared expert is brought with it, wherever it sits",
        )
    if len(parts.shared) != shape.num_shared:
        raise ShapeMismatch(
            f"shared experts of layer {layer}",
            got=(len(parts.shared),),
            expected=f"({shape.num_shared},)",
        )
    for number, expert in enumerate(parts.shared):
        _require_shared(shape, expert, dtype, what=f"shared expert {number} of layer {layer}")


def _require_path(shape: StackShape, layer: int, parts: LayerWeights, dtype: torch.dtype) -> None:
    path, d, z = parts.path, shape.width, shape.routed_width
    wanted = _kind_of_path(shape)
    if not isinstance(path, wanted):
        raise ShapeMismatch(
            f"path of layer {layer}, a {type(path).__name__},",
            got=(),
            expected=f"a {wanted.__name__}, as the model's shape says",
        )
    if isinstance(path, Latent | NormedLatent):
        _require_plain(f"down_ZD of layer {layer}", path.down_ZD, (z, d), dtype)
        _require_plain(f"up_DZ of layer {layer}", path.up_DZ, (d, z), dtype)
    if isinstance(path, NormedLatent):
        _require_plain(f"norm_Z of layer {layer}", path.norm_Z, (z,), dtype)


def _kind_of_path(shape: StackShape) -> type[RoutedPath]:
    if shape.latent is None:
        return Direct
    return NormedLatent if shape.latent.normed else Latent


def _require_shared(
    shape: StackShape, expert: SharedExpert, dtype: torch.dtype, *, what: str
) -> None:
    weights, is_plain = expert.weights, isinstance(expert.weights, DenseWeights)
    dense = weights if isinstance(weights, DenseWeights) else dense_of(weights)
    require_expert(shape, dense, what=what, width=shape.width)
    for name, stack in dense.named().items():
        _require_plain(f"{name} of {what}", stack, tuple(stack.shape), dtype if is_plain else None)
    if isinstance(expert.gate, ExpertGate):
        _require_plain(f"gate of {what}", expert.gate.gate_1D, (1, shape.width), dtype)


def _require_plain(
    what: str, given: Tensor, expected: tuple[int, ...], dtype: torch.dtype | None
) -> None:
    """Raise ShapeMismatch unless a tensor has this shape and dtype, in memory, and is finite."""
    _require(what, given, expected)
    dtype = given.dtype if dtype is None else dtype
    if given.dtype != dtype:
        raise ShapeMismatch(
            f"{what}, of {given.dtype},", got=given.shape, expected=f"{expected} of {dtype}"
        )
    _require_finite(what, given, dtype)


def _require_finite(what: str, given: Tensor, dtype: torch.dtype) -> None:
    if not bool(given.to(dtype).isfinite().all()):
        raise ShapeMismatch(
            f"{what}, not finite in {dtype},", got=given.shape, expected="finite numbers"
        )


def _require(what: str, given: Tensor, expected: tuple[int, ...]) -> None:
    if given.layout is not torch.strided:
        raise ShapeMismatch(
            f"{what}, of {given.layout},", got=given.shape, expected=f"{expected}, not sparse"
        )
    if given.shape != expected:
        raise ShapeMismatch(what, got=given.shape, expected=f"{expected}")
