"""vLLM's factory of MoE layers, replaced.

Every MoE layer of every model is made by one function of vLLM, which lets a caller name the
classes of the runner and of the weights' owner. Ours calls it with classes that are mixed
into those that the model asked for, so that a model with a runner of its own keeps it. Must
happen before any model file is imported, because those bind the function by name.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import cast

from torch import Tensor

from moe_runtime.vllm import seams
from moe_runtime.vllm.demands import require_built_as_needed
from moe_runtime.vllm.errors import CannotOwn, UnfitEngine
from moe_runtime.vllm.families import parts_on
from moe_runtime.vllm.mixins import (
    RoutedExpertsMixin,
    RunnerMixin,
    mixed,
    slot_method_class,
)
from moe_runtime.vllm.options import Options, Unowned
from moe_runtime.vllm.probing import differences
from moe_runtime.vllm.redundancy import agreed_redundancy, claim_of_map, claim_of_setting
from moe_runtime.vllm.seams import Factory, Runner, parameters_of

__all__ = ["FactoryTaken", "take_factory"]


@dataclass(slots=True)
class FactoryTaken:
    """What was replaced, and what has been made since."""

    options: Options
    name: str
    original: Factory
    num_made: int = 0
    num_redundant: int | None = None
    """Of every layer, a draft model's too; known with the first one."""
    declined: CannotOwn | None = None
    """Why this process leaves its MoE layers to vLLM, once that is so."""

    def make(self, **keywords: object) -> Runner:
        """Make one MoE layer; the keywords are those of vLLM's factory."""
        prefix = str(keywords.get("prefix", ""))
        refused = reasons_against(keywords, num_redundant=self.options.num_redundant or 0)
        if refused:
            return self._decline(CannotOwn(f"MoE layer {prefix}", refused), keywords)
        if self.declined is not None:
            # A model is ours whole or not at all.
            return self.original(**keywords)
        table_VK = token_table(keywords, parameters_of(self.original))
        try:
            runner = self.original(**{**keywords, **self._ours(keywords)})
        except CannotOwn as why:  # of its weights' owner, before vLLM has noted the layer
            return self._decline(why, keywords)
        require_built_as_needed(runner)
        parts = parts_on(runner.moe_config.device, runner.layer_name)
        cast("RunnerMixin", runner).take_over(table_VK, parts)
        self.num_made += 1
        return runner

    def leave_to_engine(self, why: CannotOwn) -> None:
        """Have the model built anew, for vLLM alone; raises `why` if it must not be."""
        if self.options.unowned is Unowned.REFUSE:
            raise why
        self.declined, self.num_made = self.declined or why, 0

    def _ours(self, keywords: dict[str, object]) -> dict[str, object]:
        runner_cls = cast("type | None", keywords.get("runner_cls"))
        experts_cls = cast("type | None", keywords.get("routed_experts_cls"))
        base_runner = seams.module("runner.moe_runner").MoERunner
        base_experts = seams.module("routed_experts").RoutedExperts
        num_redundant = self._redundancy(cast("int", keywords["num_experts"]))
        return {
            "runner_cls": mixed(RunnerMixin, runner_cls or base_runner),
            "routed_experts_cls": mixed(
                RoutedExpertsMixin, experts_cls or base_experts, slot_method=slot_method_class()
            ),
            # vLLM allocates slots beyond one for each expert only under its own balancer's flag.
            "enable_eplb": num_redundant > 0,
            "num_redundant_experts": num_redundant,
        }

    def _redundancy(self, num_experts: int) -> int:
        """Return how many redundant experts layers have; raises Contradiction if disputed."""
        if self.num_redundant is None:
            told, slots = self.options.num_redundant, self.options.map_slots
            claims = [] if told is None else [claim_of_setting(told)]
            if slots is not None:
                claims.append(claim_of_map(slots, num_experts))
            self.num_redundant = agreed_redundancy("the model", claims)
        return self.num_redundant

    def _decline(self, why: CannotOwn, keywords: dict[str, object]) -> Runner:
        if self.options.unowned is Unowned.REFUSE or self.num_made:
            raise why
        self.declined = self.declined or why
        return self.original(**keywords)


def take_factory(options: Options) -> FactoryTaken:
    """Replace the factory in both places that bind it; called again, return what is there.

    Raises UnfitEngine, with nothing replaced, if this vLLM is not as the plugin needs it, or if
    something has bound the factory already.
    """
    made, package = seams.layers()
    name = seams.factory_name()
    current = getattr(made, name or "", None)
    if (taken := getattr(current, "eplb_taken", None)) is not None:
        return cast("FactoryTaken", taken)
    found = differences()
    if name is not None and (early := early_bindings(name, current, (made, package))):
        found = (*found, f"{name} was bound before the plugin came, by {', '.join(early)}")
    if found or name is None:
        raise UnfitEngine(seams.engine_version(), found)
    taken = FactoryTaken(options, name, cast("Factory", current))
    replacement = _replacement(taken)
    for place in (made, package):
        setattr(place, name, replacement)
    return taken


def early_bindings(name: str, original: object, known: tuple[ModuleType, ...]) -> tuple[str, ...]:
    """Return the modules beside the known ones that hold the original factory by its name."""
    return tuple(
        sorted(
            where
            for where, loaded in list(sys.modules.items())
            if loaded not in known and getattr(loaded, "__dict__", {}).get(name) is original
        )
    )


def reasons_against(keywords: dict[str, object], *, num_redundant: int = 0) -> list[str]:
    """Return what a layer asks for that the runtime does not have, by the factory's keywords.

    num_redundant    what our own setting asks for
    """
    unless: dict[str, tuple[Callable[[object], bool], str]] = {
        "has_bias": (bool, "its experts have biases"),
        "router": (_is_given, "it brings a router of its own, {}"),
        "zero_expert_type": (_is_given, "it has zero experts of type {}"),
        "fuse_shared_experts": (bool, "its shared experts are fused into the routed ones"),
        "bias_vl": (_is_given, "it has a second routing bias for images"),
        "shared_expert_gate": (_is_given, "its shared expert has a gate of its own"),
    }
    found: list[str] = []
    for word, (is_against, text) in unless.items():
        value = keywords.get(word)
        if is_against(value):
            found.append(f"{text.format(type(value).__name__)} ({word})")
    if str(keywords.get("activation", "silu")).endswith("_no_mul"):
        found.append(f"its activation {keywords['activation']} has no gate (activation)")
    if keywords.get("enable_eplb"):
        theirs = keywords.get("num_redundant_experts", 0)
        found.append(
            f"vLLM's own balancer is on, with {theirs} redundant experts where "
            f"EPLB_VLLM_REDUNDANT_EXPERTS={num_redundant}, and only one can move experts "
            "(enable_eplb)"
        )
    return found


def token_table(keywords: dict[str, object], known: Sequence[str]) -> Tensor | None:
    """Return [V, K] experts by token, where a layer has them.

    vLLM takes them itself; models for vllm-ascend hand theirs to its replaced factory, by another
    name that vLLM's own does not take.
    """
    given = keywords.get("hash_indices_table")
    if "tid2eid" not in known:
        given = keywords.pop("tid2eid", None) if given is None else given
        keywords.pop("hash", None)
    return cast("Tensor | None", given)


def _is_given(value: object) -> bool:
    return value is not None


def _replacement(taken: FactoryTaken) -> Factory:
    def make_moe_layer(*values: object, **keywords: object) -> Runner:
        """Stand in for vLLM's factory."""
        names = list(parameters_of(taken.original))[: len(values)]
        return taken.make(**dict(zip(names, values, strict=True)), **keywords)

    make_moe_layer.eplb_taken = taken  # pyright: ignore[reportFunctionMemberAccess]
    return make_moe_layer
