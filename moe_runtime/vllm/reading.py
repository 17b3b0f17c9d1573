"""How a layer of vLLM routes and computes, read from its routed experts.

What our selector and experts cannot honour is refused by name; nothing is dropped.
Axes as in `contracts`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from moe_runtime.contracts.errors import MoeError
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.experts.activations import (
    Activation,
    ClippedSwiGLU,
    SiTU,
    SwiGLU,
    SwiGLUStep,
    activation_named,
)
from moe_runtime.routing.kinds import (
    Chosen,
    Corrected,
    CustomRouting,
    HashRouting,
    HashTable,
    OnInputRouting,
    RouterTensors,
    Routing,
    Uncorrected,
    groups_of,
)
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.seams import MoEConfig, RoutedExperts, Runner

__all__ = ["Reading", "activation_of", "common_groups", "read", "read_runner"]

_INTERLEAVED_HALVES = "swigluoai_uninterleave"

_Plain = SelectorSettings | HashRouting | CustomRouting


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One layer as the stages need it."""

    routing: Routing
    tensors: RouterTensors
    activation: Activation


def read_runner(runner: Runner) -> Reading:
    """Translate the layer of a runner that was taken, by its table of token ids if it has one."""
    return read(runner.routed_experts, cast("Tensor | None", vars(runner)["eplb_table_VK"]))


def common_groups(readings: Sequence[Reading]) -> int:
    """Groups of experts that limit the router of every layer; 1 where layers differ."""
    found = {groups_of(reading.routing) for reading in readings}
    return found.pop() if len(found) == 1 else 1


@dataclass(frozen=True, slots=True)
class ModelFunction:
    """A model's own routing function, called the way vLLM calls it."""

    function: Callable[..., tuple[Tensor, Tensor]]
    renormalize: bool

    def __call__(self, x_TD: Tensor, logits_TE: Tensor, *, top_k: int) -> Chosen:
        """Choose experts."""
        weights_TK, experts_TK = self.function(
            hidden_states=x_TD, gating_output=logits_TE, topk=top_k, renormalize=self.renormalize
        )
        return Chosen(experts_TK, weights_TK)


def read(experts: RoutedExperts, table_VK: Tensor | None) -> Reading:
    """Return how a loaded layer routes and computes.

    table_VK    upstream's tid2eid, where the layer has one

    Raises CannotOwn with everything that cannot be honoured.
    """
    try:
        routing, tensors = _routing(experts, table_VK)
        if experts.apply_router_weight_on_input:
            routing = OnInputRouting(routing)
        return Reading(routing, tensors, activation_of(experts.activation.value, experts))
    except CannotOwn:
        raise
    except MoeError as error:
        raise CannotOwn(experts.layer_name, [str(error)]) from error


def activation_of(name: str, experts: RoutedExperts) -> Activation:
    """Return the activation that vLLM calls `name`, with this layer's own constants."""
    config = experts.moe_config
    given = {name: value for name, value in _constants(config) if value is not None}
    takes: dict[str, tuple[set[str], Callable[[dict[str, float]], Activation]]] = {
        "silu": ({"swiglu_limit"}, _silu),
        "swiglustep": ({"swiglu_limit"}, _step),
        _INTERLEAVED_HALVES: ({"swiglu_alpha", "swiglu_beta", "swiglu_limit"}, _clipped),
        "situ": ({"activation_situ_beta", "activation_situ_linear_beta"}, _situ),
    }
    honoured, build = takes.get(name, (set[str](), lambda _given: activation_named(name)))
    if unread := sorted(set(given) - honoured):
        raise CannotOwn(
            experts.layer_name,
            [f"activation {name} has no {word}={given[word]}" for word in unread],
        )
    return build(given)


def _constants(config: MoEConfig) -> Iterator[tuple[str, float | None]]:
    yield "swiglu_limit", config.swiglu_limit
    yield "swiglu_alpha", config.swiglu_alpha
    yield "swiglu_beta", config.swiglu_beta
    yield "activation_situ_beta", config.activation_situ_beta
    yield "activation_situ_linear_beta", config.activation_situ_linear_beta


def _silu(given: dict[str, float]) -> Activation:
    return SwiGLU(given["swiglu_limit"]) if given else SwiGLU()


def _step(given: dict[str, float]) -> Activation:
    return SwiGLUStep(given["swiglu_limit"]) if given else SwiGLUStep()


def _clipped(given: dict[str, float]) -> Activation:
    if len(given) < 3:
        raise CannotOwn(
            f"activation {_INTERLEAVED_HALVES}",
            [f"it needs alpha, beta and limit, and only {sorted(given)} are given"],
        )
    return ClippedSwiGLU(
        alpha=given["swiglu_alpha"], beta=given["swiglu_beta"], limit=given["swiglu_limit"]
    )


def _situ(given: dict[str, float]) -> Activation:
    default = SiTU()
    return SiTU(
        given.get("activation_situ_beta", default.beta),
        given.get("activation_situ_linear_beta", default.linear_beta),
    )


def _routing(experts: RoutedExperts, table_VK: Tensor | None) -> tuple[_Plain, RouterTensors]:
    num_experts, top_k = experts.moe_config.num_logical_experts, experts.top_k
    factor = experts.routed_scaling_factor
    if (function := experts.custom_routing_function) is not None:
        # vLLM leaves the factor to a model's own function, so it is not applied a second time.
        own = ModelFunction(function, experts.renormalize)
        return CustomRouting(num_experts=num_experts, top_k=top_k, function=own), Uncorrected()
    scoring = _scoring(experts)
    if table_VK is not None:
        by_token = HashRouting(
            num_experts=num_experts,
            top_k=top_k,
            vocabulary=table_VK.shape[0],
            scoring=scoring,
            renormalise=experts.renormalize,
            factor=factor,
        )
        return by_token, HashTable(table_VK)
    grouped = experts.use_grouped_topk
    by_score = SelectorSettings(
        num_experts=num_experts,
        top_k=top_k,
        scoring=scoring,
        renormalise=experts.renormalize,
        factor=factor,
        num_groups=(experts.num_expert_group or 1) if grouped else 1,
        kept_groups=(experts.topk_group or 1) if grouped else 1,
    )
    bias = experts.e_score_correction_bias
    return by_score, Uncorrected() if bias is None else Corrected(bias.detach())


def _scoring(experts: RoutedExperts) -> Scoring:
    known = {scoring.value: scoring for scoring in Scoring}
    if experts.scoring_func not in known:
        raise CannotOwn(
            experts.layer_name,
            [f"scoring_func={experts.scoring_func}, expected one of {', '.join(known)}"],
        )
    return known[experts.scoring_func]
