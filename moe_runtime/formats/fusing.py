"""What fused MC2 keeps of its own for each expert, and all that an expert consists of.

Axes    S slots   B output width   G groups of the input

On a device fused MC2 is one operator, which takes lists of experts and scales as words of 64 bits.
Lists are views onto slots, so a move changes what they show; words are tensors of their own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.contracts.linears import Int4Linear, Int8Linear
from moe_runtime.contracts.weights import (
    BiasedWeights,
    ExpertWeights,
    FusedWeights,
    PlainExpertWeights,
    ReadableWeights,
    W4A8Weights,
    W8A8Weights,
)
from moe_runtime.formats.packing import WeightFormat

__all__ = ["FusedLists", "by_fused_scales", "fused", "fused_lists", "manifest", "plain_of"]

_LOW_WORD = 0xFFFFFFFF
_LINEAR: dict[WeightFormat, tuple[str, ...]] = {
    WeightFormat.UNQUANTISED: ("",),
    WeightFormat.W8A8: ("", "_scale"),
    WeightFormat.W8A8_FP8: ("", "_scale"),
    WeightFormat.W4A8: ("", "_scale", "_scale_bias"),
    WeightFormat.W4A16: ("", "_scale", "_offset"),
    WeightFormat.W8A8_MXFP8: ("", "_scale"),
    WeightFormat.W4A8_MXFP: ("", "_scale"),
    WeightFormat.W4A4_MXFP4: ("", "_scale"),
    WeightFormat.W4A16_MXFP4: ("", "_scale"),
}
_FUSED = frozenset({WeightFormat.W8A8, WeightFormat.W4A8})
"""Formats for which fused MC2 has scales of its own."""


def manifest(stored: WeightFormat, *, biased: bool, is_fused: bool) -> frozenset[str]:
    """Return the name of every tensor that moves with an expert.

    is_fused    whether the deployment may exchange by fused MC2

    >>> sorted(manifest(WeightFormat.W8A8, biased=False, is_fused=True))
    ['w13', 'w13_fused', 'w13_scale', 'w2', 'w2_fused', 'w2_scale']
    """
    parts = (*_LINEAR[stored], *(("_fused",) if is_fused and stored in _FUSED else ()))
    names = {f"{linear}{part}" for linear in ("w13", "w2") for part in parts}
    return frozenset(names | ({"bias13", "bias2"} if biased else set()))


def fused(weights: ReadableWeights) -> ExpertWeights:
    """Return the same experts with what fused MC2 reads; as they are, where it has no more."""
    match _inner(weights):
        case W8A8Weights(w13, w2) | W4A8Weights(w13, w2):
            return FusedWeights(weights, _words(_scale(w13)), _words(_scale(w2)))
        case _:
            return weights


def plain_of(weights: ExpertWeights) -> ReadableWeights:
    """Return experts as every other exchange has them computed."""
    return weights.weights if isinstance(weights, FusedWeights) else weights


def by_fused_scales(weights: ExpertWeights) -> ReadableWeights:
    """Return experts as fused MC2 computes them: by its own scales, where it has any."""
    if not isinstance(weights, FusedWeights):
        return weights
    match _inner(weights.weights):
        case W8A8Weights(w13, w2):
            inner = W8A8Weights(
                Int8Linear(w13.w_SBA, _floats(weights.fused13_S)),
                Int8Linear(w2.w_SBA, _floats(weights.fused2_S)),
            )
        case W4A8Weights(w13, w2):
            inner = W4A8Weights(
                Int4Linear(w13.w_SAW, _floats(weights.fused13_S), w13.scale_bias_SB),
                Int4Linear(w2.w_SAW, _floats(weights.fused2_S), w2.scale_bias_SB),
            )
        case other:
            inner = other
    match weights.weights:
        case BiasedWeights(_, bias13_SF, bias2_SZ):
            return BiasedWeights(inner, bias13_SF, bias2_SZ)
        case _:
            return inner


@dataclass(frozen=True, slots=True)
class FusedLists:
    """Every tensor of a fused operator's experts, one for each slot: views, made once."""

    by_name: dict[str, tuple[Tensor, ...]]


def fused_lists(weights: ExpertWeights) -> FusedLists:
    """Return lists that go on showing what slots hold, whatever is installed in them."""
    return FusedLists({name: stack.unbind() for name, stack in weights.named().items()})


def _inner(weights: ReadableWeights) -> PlainExpertWeights:
    return weights.weights if isinstance(weights, BiasedWeights) else weights


def _scale(linear: Int8Linear | Int4Linear) -> Tensor:
    return linear.scale_SB if isinstance(linear, Int8Linear) else linear.scale_SGB


def _words(scale: Tensor) -> Tensor:
    return scale.contiguous().view(torch.int32).to(torch.int64) & _LOW_WORD


def _floats(words: Tensor) -> Tensor:
    return words.to(torch.int32).view(torch.float32)
