"""Parameters of quantised experts, as vLLM's loader finds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from moe_runtime.formats.packing import WeightFormat
from moe_runtime.vllm import seams
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.seams import RoutedExperts

__all__ = ["Sizes", "add_parameter", "require_multiples"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What vLLM asks a method to allocate."""

    num_slots: int
    width: int
    """Z."""
    expert_width: int
    """I."""
    dtype: torch.dtype
    """The model's."""


def require_multiples(layer: RoutedExperts, sizes: Sizes, *, of: int, form: WeightFormat) -> None:
    """Raise CannotOwn unless a layer's widths are multiples."""
    if sizes.width % of or sizes.expert_width % of:
        raise CannotOwn(
            f"MoE layer {layer.layer_name}",
            [
                f"widths {sizes.width} and {sizes.expert_width} are no multiples of {of}, as "
                f"{form.value} needs them"
            ],
        )


def add_parameter(
    layer: RoutedExperts, name: str, memory: Tensor, attributes: Mapping[str, object]
) -> None:
    """Give a layer a parameter, marked with what vLLM's loader wants to find on it."""
    parameter = torch.nn.Parameter(memory, requires_grad=False)
    cast("torch.nn.Module", layer).register_parameter(name, parameter)
    seams.module("vllm.model_executor.utils").set_weight_attrs(parameter, dict(attributes))
