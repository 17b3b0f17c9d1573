"""The classes that vLLM's factory is made to use: ours in front of those that a model asks for.

Axes    T rows   D model width   Z width of the routed part
"""

from collections.abc import Callable
from functools import cache
from typing import Protocol, cast

import torch
from torch import Tensor

from moe_runtime.vllm import seams
from moe_runtime.vllm.allocating import Sizes
from moe_runtime.vllm.content import mark_of
from moe_runtime.vllm.families import Parts
from moe_runtime.vllm.formats import Scheme, scheme_of, weights_of
from moe_runtime.vllm.seams import RoutedExperts, Runner

__all__ = ["OwnedLayer", "RoutedExpertsMixin", "RunnerMixin", "mixed", "slot_method_class"]

_SIZES = ("num_experts", "hidden_size", "intermediate_size_per_partition")


class OwnedLayer(Protocol):
    """One layer of a stack, as its runner calls it."""

    @property
    def is_reduced(self) -> bool:
        """Whether outputs are complete, and not this rank's part of a sum."""
        ...

    def forward(self, x_TZ: Tensor, logits_TX: Tensor, token_ids_T: Tensor | None) -> Tensor:
        """Return [T, Z]."""
        ...


class NotBound:
    """In the place of a layer until the model is loaded."""

    is_reduced = True

    def forward(self, x_TZ: Tensor, logits_TX: Tensor, token_ids_T: Tensor | None) -> Tensor:
        """Raise: no forward may come before the stack is bound."""
        del x_TZ, logits_TX, token_ids_T
        raise RuntimeError("a MoE layer was run before its model was loaded and bound")


class Modules(Protocol):
    """What a runner has beside what `Runner` tells."""

    gate: Callable[[Tensor], tuple[Tensor, object]] | None


class SharedExperts(Protocol):
    """vLLM's shared experts: run, then asked for their output."""

    output: Tensor

    def __call__(self, x_TD: Tensor, order: object) -> None:
        """Run them, if this is their turn."""
        ...


class RunnerMixin:
    """In front of a MoERunner: what is routed goes through our stages, all else is vLLM's."""

    _shared_experts: SharedExperts | None
    layer_name: str

    def take_over(self, table_VK: Tensor | None, parts: Parts) -> None:
        """Be ours from here on; the layer itself is bound once weights are loaded.

        parts    of the device that it was built on
        """
        # Plain attributes: nn.Module would take a tensor for a part of its state.
        self.__dict__["eplb_layer"] = NotBound()
        self.__dict__["eplb_table_VK"] = table_VK
        self.__dict__["eplb_parts"] = parts
        # The state of vLLM's own balancer, of which only the slots are wanted.
        cast("Runner", self).router.eplb_state = None

    @property
    def _fused_output_is_reduced(self) -> bool:
        return cast("OwnedLayer", self.__dict__["eplb_layer"]).is_reduced

    def _forward_impl(
        self,
        hidden_states: Tensor,
        router_logits: Tensor,
        shared_experts_input: Tensor | None,
        input_ids: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        shared = self._shared_experts
        if shared is not None:
            assert shared_experts_input is not None
            shared(shared_experts_input, _before_anything_else())
        gate = cast("Modules", self).gate
        if gate is not None:
            router_logits, _ = gate(hidden_states)
        layer = cast("OwnedLayer", self.__dict__["eplb_layer"])
        routed = layer.forward(hidden_states, router_logits, input_ids)
        return routed if shared is None else (shared.output, routed)


class RoutedExpertsMixin:
    """In front of RoutedExperts: weights stay as they were loaded, for our experts to read."""

    eplb_slot_method: type

    def _get_quant_method(self, prefix: str, quant_config: object, moe_config: object) -> object:
        """Return the method that owns weights; raises CannotOwn for a format that we have not."""
        layer = cast("RoutedExperts", self)
        scheme = None if quant_config is None else scheme_of(quant_config, layer, prefix)
        # A plain attribute: nn.Module would look for its own state in it.
        self.__dict__["eplb_scheme"] = scheme
        return self.eplb_slot_method(moe_config)


class SlotMethodMixin:
    """Meets FusedMoEMethodBase: allocates slots, packs nothing, computes nothing."""

    supports_eplb = True
    """Slots may hold any expert."""

    def create_weights(self, layer: RoutedExperts, **sizes: object) -> None:
        """Allocate the slots the way vLLM does, so that every loader finds them."""
        scheme = cast("Scheme | None", vars(layer)["eplb_scheme"])
        if scheme is None:
            plain = seams.module("unquantized_fused_moe_method").UnquantizedFusedMoEMethod
            plain.create_weights(self, layer, **sizes)
            return
        slots, width, inner = (cast("int", sizes.pop(name)) for name in _SIZES)
        dtype = cast("torch.dtype", sizes.pop("params_dtype"))
        scheme.allocate(layer, Sizes(slots, width, inner, dtype), sizes)

    def maybe_roundup_sizes(
        self, hidden_size: int, intermediate_size: int, *_others: object
    ) -> tuple[int, int]:
        """Return the sizes as they are: our experts have no kernel that wants others."""
        return hidden_size, intermediate_size

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Leave the weights where and as they are, for a reload too, and note what they are.

        Raises CannotOwn if they are not as they were allocated.
        """
        layer.__dict__["eplb_loaded"] = mark_of(weights_of(layer), layer.layer_name)

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> None:
        """Return None: no kernel of vLLM reads these experts."""
        del layer


@cache
def mixed(mixin: type, base: type, slot_method: type | None = None) -> type:
    """Return a class that is `mixin` in front of `base`; the same for the same two."""
    if issubclass(base, mixin):
        return base
    content = {} if slot_method is None else {"eplb_slot_method": slot_method}
    return type(f"Eplb{base.__name__}", (mixin, base), content)


@cache
def slot_method_class() -> type:
    """Return the method that owns weights."""
    base = seams.module("fused_moe_method_base").FusedMoEMethodBase
    return type("EplbSlotMethod", (SlotMethodMixin, base), {})


@cache
def _before_anything_else() -> object:
    return seams.module("runner.shared_experts").SharedExpertsOrder.NO_OVERLAP
