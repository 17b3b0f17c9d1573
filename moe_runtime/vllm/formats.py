"""Which quantised checkpoints the runtime's formats can honour, and their tensors in vLLM's layers.

Axes    S slots   B output width   A input width   I expert width   Z width of the routed part

Read are checkpoints of compressed-tensors, since they say of every layer how weights are stored
and in which form experts read rows. vLLM's loader finds a tensor by its name and by how its scales
are spread; so memory is allocated as checkpoints have it, and our formats are views on that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from moe_runtime.contracts.linears import Fp8Linear, Int8Linear, Linear, Mx4Linear, Mx8Linear
from moe_runtime.contracts.rows import BLOCK
from moe_runtime.contracts.weights import DenseWeights, ExpertWeights
from moe_runtime.formats.packing import WeightFormat
from moe_runtime.vllm.allocating import Sizes, add_parameter, require_multiples
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.int4 import Int4Groups
from moe_runtime.vllm.probing import Need, unmet
from moe_runtime.vllm.seams import RoutedExperts

__all__ = ["Scheme", "StoredAs", "format_of", "scheme_of", "weights_of"]

COMPRESSED = "compressed-tensors"
NEEDS = (
    Need(
        "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
        "CompressedTensorsConfig.get_scheme_dict",
        ("layer", "layer_name"),
    ),
    Need(
        "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
        "CompressedTensorsConfig._add_fused_moe_to_target_scheme_map",
    ),
    Need("vllm.model_executor.utils", "set_weight_attrs", ("weight", "weight_attrs")),
)


class Quantised(Protocol):
    """QuantizationArgs of compressed-tensors: how one tensor is quantised."""

    num_bits: int
    type: str
    strategy: str | None
    group_size: int | None
    symmetric: bool
    dynamic: object
    """True where it is done for every step anew."""
    scale_dtype: torch.dtype | None


class QuantConfig(Protocol):
    """CompressedTensorsConfig, or the configuration of another method."""

    def get_name(self) -> str:
        """Return the method's name."""
        ...

    def get_scheme_dict(self, layer: object, layer_name: str) -> dict[str, object] | None:
        """Return how a linear's weights are stored; None where they are not quantised."""
        ...

    def _add_fused_moe_to_target_scheme_map(self) -> None: ...


class Scheme(Protocol):
    """One way of storing experts, and our format for it."""

    @property
    def format(self) -> WeightFormat:
        """Return our format."""
        ...

    def allocate(
        self, layer: RoutedExperts, sizes: Sizes, attributes: Mapping[str, object]
    ) -> None:
        """Give a layer its parameters, under the names that checkpoints use.

        attributes    what vLLM's loader wants to find on each of them

        Raises CannotOwn for widths that the format does not divide.
        """
        ...

    def read(self, layer: object) -> ExpertWeights:
        """Return a layer's experts as views on its parameters."""
        ...


@dataclass(frozen=True, slots=True)
class StoredAs:
    """Meets `Scheme` for what can be read as it lies in a checkpoint."""

    format: WeightFormat
    linear: Callable[[Tensor, Tensor], Linear]
    values: torch.dtype
    scales: torch.dtype
    suffix: str = "weight"
    per_element: int = 1
    """Numbers in one element of `values`."""
    block: int = 0
    """Inputs that share a scale; 0: all inputs of an output."""

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, int, int]]:
        """Return [S, B, A] of the values of both matrices, and of their scales, by name."""
        widths = {"w13": (2 * sizes.expert_width, sizes.width)}
        widths["w2"] = (sizes.width, sizes.expert_width)
        found: dict[str, tuple[int, int, int]] = {}
        for name, (outputs, inputs) in widths.items():
            found[f"{name}_{self.suffix}"] = (sizes.num_slots, outputs, inputs // self.per_element)
            groups = inputs // self.block if self.block else 1
            found[f"{name}_weight_scale"] = (sizes.num_slots, outputs, groups)
        return found

    def allocate(
        self, layer: RoutedExperts, sizes: Sizes, attributes: Mapping[str, object]
    ) -> None:
        """Give a layer its parameters; raises CannotOwn for widths that blocks do not divide."""
        if self.block:
            require_multiples(layer, sizes, of=self.block, form=self.format)
        spread = {"quant_method": "group" if self.block else "channel"}
        for name, shape in self.shapes(sizes).items():
            is_scale = name.endswith("_scale")
            memory = torch.zeros(shape, dtype=self.scales if is_scale else self.values)
            add_parameter(layer, name, memory, {**attributes, **(spread if is_scale else {})})

    def read(self, layer: object) -> ExpertWeights:
        """Return a layer's experts as views on its parameters."""
        linears = [self._linear(layer, name) for name in ("w13", "w2")]
        build = cast("Callable[..., ExpertWeights]", self.format.weights_type)
        return build(*linears)

    def _linear(self, layer: object, name: str) -> Linear:
        values: Tensor = getattr(layer, f"{name}_{self.suffix}").detach()
        scales: Tensor = getattr(layer, f"{name}_weight_scale").detach()
        return self.linear(values, scales if self.block else scales[:, :, 0])


E4M3 = torch.float8_e4m3fn


def _mx4(form: WeightFormat) -> StoredAs:
    return StoredAs(
        form, Mx4Linear, torch.uint8, torch.uint8, "weight_packed", per_element=2, block=BLOCK
    )


KNOWN: dict[tuple[str, str], Scheme] = {
    ("int8 by channel", "int8 by token"): StoredAs(
        WeightFormat.W8A8, Int8Linear, torch.int8, torch.float32
    ),
    ("float8 by channel", "float8 by token"): StoredAs(
        WeightFormat.W8A8_FP8, Fp8Linear, E4M3, torch.float32
    ),
    ("float8 by group of 32", "float8 by group of 32"): StoredAs(
        WeightFormat.W8A8_MXFP8, Mx8Linear, E4M3, torch.uint8, block=BLOCK
    ),
    ("int4 by channel", "as they are"): Int4Groups(0),
    **{
        (f"int4 by group of {group}", "as they are"): Int4Groups(group)
        for group in (16, 32, 64, 128, 256)
    },
    ("float4 by group of 32", "as they are"): _mx4(WeightFormat.W4A16_MXFP4),
    ("float4 by group of 32", "float8 by group of 32"): _mx4(WeightFormat.W4A8_MXFP),
    ("float4 by group of 32", "float4 by group of 32"): _mx4(WeightFormat.W4A4_MXFP4),
}
"""By how weights are stored and how experts read rows, in the words of `_words`."""


def scheme_of(quant_config: object, layer: RoutedExperts, prefix: str) -> Scheme | None:
    """Return how a layer's experts are stored; None where they are not quantised.

    Raises CannotOwn, naming how, where the runtime has no such format.
    """
    what = f"MoE layer {prefix}"
    config = cast("QuantConfig", quant_config)
    if (method := config.get_name()) != COMPRESSED:
        raise CannotOwn(
            what, [f"its experts are quantised by {method}, expected {COMPRESSED} (quant_config)"]
        )
    if differs := unmet(NEEDS):
        raise CannotOwn(what, differs)
    config._add_fused_moe_to_target_scheme_map()  # pyright: ignore[reportPrivateUsage]
    names = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
    schemes = [config.get_scheme_dict(layer, f"{prefix}.0.{name}") for name in names]
    told = {_told(scheme) for scheme in schemes}
    if len(told) > 1:
        raise CannotOwn(what, ["its matrices are quantised each in another way (quant_config)"])
    if (only := told.pop()) is None:
        return None
    if only not in KNOWN:
        weights, rows = only
        raise CannotOwn(
            what,
            [f"the runtime has no format of {weights} weights with rows {rows} (quant_config)"],
        )
    return KNOWN[only]


def weights_of(layer: RoutedExperts) -> ExpertWeights:
    """Return a loaded layer's experts in our format, as views on its memory."""
    scheme = _kept(layer)
    if scheme is None:
        return DenseWeights(layer.w13_weight.detach(), layer.w2_weight.detach())
    return scheme.read(layer)


def format_of(layer: RoutedExperts) -> str:
    """Return the name of a quantised layer's format; empty where it is not quantised."""
    scheme = _kept(layer)
    return "" if scheme is None else scheme.format.value


def _kept(layer: RoutedExperts) -> Scheme | None:
    return cast("Scheme | None", vars(layer).get("eplb_scheme"))


def _told(scheme: dict[str, object] | None) -> tuple[str, str] | None:
    if scheme is None:
        return None
    args = cast("Quantised", scheme["weights"])
    weights = _words(args)
    if args.type == "float" and args.num_bits == 8 and args.group_size:
        weights += "" if args.scale_dtype is torch.uint8 else f" with scales of {args.scale_dtype}"
    rows = cast("Quantised | None", scheme.get("input_activations"))
    if rows is None:
        return weights, "as they are"
    return weights, _words(rows) if rows.dynamic is True else f"static {_words(rows)}"


def _words(args: Quantised) -> str:
    """Say how a tensor is quantised."""
    spread = f"{args.strategy} of {args.group_size}" if args.group_size else f"{args.strategy}"
    skewed = "" if args.symmetric else "asymmetric "
    return f"{skewed}{args.type}{args.num_bits} by {spread}"
