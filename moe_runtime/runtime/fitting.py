"""Whether what a model brings is what its shape says; else it would be spread, cut or left out.

Axes    X experts to choose from   D model width   Z width of the routed part   I expert width
        F = 2 I
"""

import torch
from torch import Tensor

from moe_runtime.contracts.errors import ImpossibleRouting, ShapeMismatch
from moe_runtime.contracts.weights import DenseWeights, StackedWeights
from moe_runtime.formats.capabilities import DTYPES
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.routing.kinds import Corrected
from moe_runtime.runtime.model import ExpertBias, StackShape

__all__ = ["require_bias", "require_expert", "require_finite", "require_layer"]


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
        if stack.is_floating_point() and not bool(stack.to(dtype).isfinite().all()):
            raise ShapeMismatch(
                f"{name} of {what}, not finite in {dtype},",
                got=stack.shape,
                expected="finite numbers",
            )


def require_bias(shape: StackShape, bias: ExpertBias, *, what: str) -> None:
    """Raise ShapeMismatch unless there is a number for each output of both linears."""
    _require(f"gate_up bias of {what}", bias.gate_up_F, (2 * shape.intermediate,))
    _require(f"down bias of {what}", bias.down_Z, (shape.routed_width,))


def require_layer(shape: StackShape, layer: int, parts: LayerWeights) -> None:
    """Raise ShapeMismatch or ImpossibleRouting unless a layer has what the shape says it has."""
    _require(f"gate of layer {layer}", parts.gate_XD, (shape.num_candidates, shape.width))
    if isinstance(parts.router, Corrected) is not shape.corrected:
        raise ImpossibleRouting(
            f"layer {layer} brings {type(parts.router).__name__} router tensors, and the model is "
            f"said to be {'corrected' if shape.corrected else 'uncorrected'}; nothing was loaded"
        )
    if len(parts.shared) != shape.num_shared:
        raise ShapeMismatch(
            f"shared experts of layer {layer}",
            got=(len(parts.shared),),
            expected=f"({shape.num_shared},)",
        )
    for number, expert in enumerate(parts.shared):
        if isinstance(expert.weights, DenseWeights):
            what = f"shared expert {number} of layer {layer}"
            require_expert(shape, expert.weights, what=what, width=shape.width)


def _require(what: str, given: Tensor, expected: tuple[int, ...]) -> None:
    if given.shape != expected:
        raise ShapeMismatch(what, got=given.shape, expected=f"{expected}")
