"""int4 experts with rows as they are, packed anew while they are loaded.

Axes    S slots   B output width   A input width   G groups of the input   W = B / 8 words

Checkpoints of compressed-tensors pack eight numbers along the input, each with 8 added; our format
packs them along the output, with a sign. No view turns one into the other, so the parameters have
our format from the start, and what vLLM's loader hands over is turned round on its way into them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from moe_runtime.contracts.linears import Int4A16Linear
from moe_runtime.contracts.weights import ExpertWeights, W4A16Weights
from moe_runtime.formats.packing import WeightFormat
from moe_runtime.vllm.allocating import Sizes, add_parameter, require_multiples
from moe_runtime.vllm.seams import RoutedExperts

__all__ = ["Int4Groups", "turned"]

_WORD = 8


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """Symmetric int4."""

    group: int
    """Inputs that share a scale; 0: all inputs of an output."""
    format: WeightFormat = WeightFormat.W4A16

    def allocate(
        self, layer: RoutedExperts, sizes: Sizes, attributes: Mapping[str, object]
    ) -> None:
        """Give a layer its parameters; raises CannotOwn for widths that do not divide."""
        require_multiples(layer, sizes, of=max(self.group, _WORD), form=self.format)
        widths = {"w13": (2 * sizes.expert_width, sizes.width)}
        widths["w2"] = (sizes.width, sizes.expert_width)
        for name, (outputs, inputs) in widths.items():
            num_groups = inputs // self.group if self.group else 1
            groups = (sizes.num_slots, num_groups, outputs)
            packed = torch.zeros((sizes.num_slots, inputs, outputs // _WORD), dtype=torch.int32)
            words, numbers = Turning(layer, is_packed=True), Turning(layer, is_packed=False)
            told = {
                f"{name}_weight_packed": (packed, words),
                f"{name}_weight_scale": (torch.zeros(groups, dtype=sizes.dtype), numbers),
                f"{name}_weight_offset": (torch.zeros(groups, dtype=sizes.dtype), numbers),
                f"{name}_weight_shape": (torch.zeros((sizes.num_slots, 2)), _pass_over),
            }
            for full, (memory, load) in told.items():
                add_parameter(layer, full, memory, {**attributes, "weight_loader": load})

    def read(self, layer: object) -> ExpertWeights:
        """Return a layer's experts as views on its parameters."""
        w13, w2 = (
            Int4A16Linear(
                *(
                    cast("Tensor", getattr(layer, f"{name}_weight_{part}")).detach()
                    for part in ("packed", "scale", "offset")
                )
            )
            for name in ("w13", "w2")
        )
        return W4A16Weights(w13, w2)


def turned(words_BY: Tensor) -> Tensor:
    """Return int32 [A, W]: a checkpoint's matrix, int32 [B, A / 8], in our packing.

    In bytes throughout, two numbers in each: adding 8 is flipping the highest of four bits.
    """
    bytes_BY = words_BY.contiguous().view(torch.uint8) ^ 0x88
    numbers_BA = torch.stack((bytes_BY & 15, bytes_BY >> 4), dim=-1).flatten(1)
    numbers_AB = numbers_BA.t()
    return (numbers_AB[:, 0::2] | numbers_AB[:, 1::2] << 4).contiguous().view(torch.int32)


@dataclass(frozen=True, slots=True)
class Turning:
    """Meets vLLM's weight loader: copies one matrix, or what belongs to it, by columns."""

    layer: RoutedExperts
    is_packed: bool

    def __call__(
        self,
        param: Tensor,
        loaded_weight: Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        **told: object,
    ) -> bool:
        """Return whether the expert has a slot on this rank."""
        del weight_name, told
        local = self.layer._map_global_expert_id_to_local_expert_id(expert_id)  # pyright: ignore[reportPrivateUsage]
        if local == -1:
            return False
        columns = param.data[local]
        if shard_id != "w2":
            columns = columns.chunk(2, dim=1)[shard_id == "w3"]
        columns.copy_(turned(loaded_weight) if self.is_packed else loaded_weight.t())
        return True


def _pass_over(*_values: object, **_told: object) -> bool:
    """Take what is known already: a matrix's shape."""
    return True
