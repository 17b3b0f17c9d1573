"""How a loaded layer of vLLM routes and computes is read from it, or it is refused by name."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.experts.activations import Activation, ClippedSwiGLU, SiTU, SwiGLU
from moe_runtime.routing.kinds import (
    Chosen,
    Corrected,
    CustomRouting,
    HashRouting,
    HashTable,
    OnInputRouting,
    Uncorrected,
)
from moe_runtime.vllm import CannotOwn, FactoryTaken, Options, proving
from moe_runtime.vllm.proving import Model, require_all_ours
from moe_runtime.vllm.reading import read
from moe_runtime.vllm.seams import Factory, RoutedExperts

NAME = "model.layers.3.mlp.experts"
CONSTANTS = (
    "swiglu_limit",
    "swiglu_alpha",
    "swiglu_beta",
    "activation_situ_beta",
    "activation_situ_linear_beta",
)


def layer(
    *, activation: str = "silu", constants: dict[str, float] | None = None, **told: object
) -> RoutedExperts:
    """RoutedExperts, as far as it is read: 16 experts, of which a token takes 2."""
    config = SimpleNamespace(num_logical_experts=16, **dict.fromkeys(CONSTANTS))
    vars(config).update(constants or {})
    plain: dict[str, object] = {
        "layer_name": NAME,
        "moe_config": config,
        "activation": SimpleNamespace(value=activation),
        "top_k": 2,
        "renormalize": True,
        "use_grouped_topk": False,
        "num_expert_group": None,
        "topk_group": None,
        "custom_routing_function": None,
        "scoring_func": "softmax",
        "routed_scaling_factor": 1.0,
        "e_score_correction_bias": None,
        "apply_router_weight_on_input": False,
    }
    return cast("RoutedExperts", SimpleNamespace(**{**plain, **told}))


def test_scores_groups_correction_and_factor_are_those_of_the_layer() -> None:
    bias = torch.rand(16)
    grouped = layer(
        scoring_func="sigmoid",
        use_grouped_topk=True,
        num_expert_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        e_score_correction_bias=bias,
        renormalize=False,
    )
    found = read(grouped, None)
    assert found.routing == SelectorSettings(
        num_experts=16,
        top_k=2,
        scoring=Scoring.SIGMOID,
        renormalise=False,
        factor=2.5,
        num_groups=4,
        kept_groups=2,
    )
    assert isinstance(found.tensors, Corrected)
    plain = read(layer(num_expert_group=4, topk_group=2), None)
    assert isinstance(plain.routing, SelectorSettings)
    assert (plain.routing.num_groups, plain.tensors) == (1, Uncorrected())


def test_experts_by_token_id_reach_the_router() -> None:
    table_VK = torch.randint(16, (50, 2))
    found = read(layer(), table_VK)
    assert isinstance(found.routing, HashRouting)
    assert found.routing.vocabulary == 50
    assert isinstance(found.tensors, HashTable)
    assert found.tensors.experts_VK is table_VK


def test_a_models_own_function_is_called_as_vllm_calls_it_and_its_factor_is_its_own() -> None:
    def choose(
        *, hidden_states: Tensor, gating_output: Tensor, topk: int, renormalize: bool
    ) -> tuple[Tensor, Tensor]:
        assert (len(hidden_states), topk, renormalize) == (3, 2, True)
        weights_TK, ids_TK = gating_output.topk(topk, dim=1)
        return weights_TK, ids_TK

    found = read(layer(custom_routing_function=choose, routed_scaling_factor=2.5), None)
    assert isinstance(found.routing, CustomRouting)
    logits_TE = torch.rand(3, 16)
    chosen = found.routing.function(torch.rand(3, 4), logits_TE, top_k=2)
    assert isinstance(chosen, Chosen)
    assert torch.equal(chosen.experts_TK, logits_TE.topk(2, dim=1).indices)


def test_weights_on_the_input_are_on_the_input() -> None:
    alone = layer(apply_router_weight_on_input=True, top_k=1)
    assert isinstance(read(alone, None).routing, OnInputRouting)


@pytest.mark.parametrize(
    ("activation", "constants", "want"),
    [
        ("silu", {}, SwiGLU()),
        ("silu", {"swiglu_limit": 7.0}, SwiGLU(7.0)),
        (
            "swigluoai_uninterleave",
            {"swiglu_alpha": 1.7, "swiglu_beta": 1.0, "swiglu_limit": 7.0},
            ClippedSwiGLU(alpha=1.7, beta=1.0, limit=7.0),
        ),
        ("situ", {"activation_situ_beta": 3.0}, SiTU(3.0, SiTU().linear_beta)),
    ],
)
def test_an_activation_has_the_layers_own_constants(
    activation: str, constants: dict[str, float], want: Activation
) -> None:
    assert read(layer(activation=activation, constants=constants), None).activation == want


@pytest.mark.parametrize(
    ("unread", "text"),
    [
        (layer(scoring_func="tanh"), "scoring_func=tanh, expected one of"),
        (layer(constants={"swiglu_alpha": 2.0}), "activation silu has no swiglu_alpha=2.0"),
        (
            layer(activation="swigluoai_uninterleave", constants={"swiglu_limit": 7.0}),
            "needs alpha, beta and limit",
        ),
        (layer(activation="mish"), "mish"),
        (layer(top_k=17), "17"),
        (layer(apply_router_weight_on_input=True), "a weight on the input needs top_k 1, not 2"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(unread: RoutedExperts, text: str) -> None:
    with pytest.raises(CannotOwn, match=text):
        read(unread, None)


class Made:
    """A MoE layer that another factory has made."""


class Whole:
    """A loaded model."""

    def named_modules(self) -> list[tuple[str, object]]:
        return [("model", self), ("model.layers.3.mlp.experts", Made())]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Whole(), r"its MoE layers model\.layers\.3.* were not made by the replaced FusedMoEFact"),
        (SimpleNamespace(named_modules=list[tuple[str, object]]), "no MoE layer that vLLM's"),
    ],
)
def test_layers_that_are_not_ours_are_found_in_a_loaded_model(
    model: Model, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made them: a module that was imported early, or another runtime."""

    def module(where: str) -> object:
        assert where == "runner.moe_runner"
        return SimpleNamespace(MoERunner=Made)

    monkeypatch.setattr(proving.seams, "module", module)
    taken = FactoryTaken(Options(), "FusedMoEFactory", cast("Factory", Made))
    with pytest.raises(CannotOwn, match=text):
        require_all_ours(model, taken)
