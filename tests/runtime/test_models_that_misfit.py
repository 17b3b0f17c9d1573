"""A model that brings other tensors than its shape says is refused when it is loaded."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from moe_runtime.contracts.errors import ImpossibleRouting, ShapeMismatch
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.experts.shared import SharedExpert
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.routing.kinds import Corrected, Uncorrected
from moe_runtime.runtime import Alone, ExchangeMode, MoeRuntime, SyntheticModel
from moe_runtime.runtime.model import ExpertBias
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import random_layout

SHAPE = replace(stack_of(KINDS["sigmoid corrected"]), biased=True)
Change = Callable[[LayerWeights], LayerWeights]


def load(model: SyntheticModel) -> None:
    start = random_layout(model.shape, (10,), seed=1).start(0)
    MoeRuntime(model, start, peers=Alone(), mode=ExchangeMode.ALL_TO_ALL)


def changed(change: Change) -> type[SyntheticModel]:
    """A model one of whose parts is another one than its shape says."""

    class Other(SyntheticModel):
        def layer(self, layer: int, dtype: torch.dtype) -> LayerWeights:
            return change(SyntheticModel.layer(self, layer, dtype))

    return Other


def cut(weights: DenseWeights) -> DenseWeights:
    return DenseWeights(weights.w13_SFZ[:, :4], weights.w2_SZI[:, :, :2])


def twice(weights: DenseWeights) -> DenseWeights:
    return DenseWeights(weights.w13_SFZ.repeat(2, 1, 1), weights.w2_SZI.repeat(2, 1, 1))


@pytest.mark.parametrize("made", [cut, twice])
@pytest.mark.parametrize("which", [0, 1])
def test_an_expert_of_another_size_is_not_spread_over_a_slot(
    made: Callable[[DenseWeights], DenseWeights], which: int
) -> None:
    class Other(SyntheticModel):
        def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
            whole = SyntheticModel.expert(self, layer, expert, dtype)
            return made(whole) if expert == which else whole

    with pytest.raises(ShapeMismatch, match=f"w13 of expert {which} of layer 0"):
        load(Other(SHAPE))


def test_a_bias_of_one_number_is_not_added_everywhere() -> None:
    class Other(SyntheticModel):
        def bias(self, layer: int, expert: int, dtype: torch.dtype) -> ExpertBias:
            whole = SyntheticModel.bias(self, layer, expert, dtype)
            return ExpertBias(whole.gate_up_F[:1], whole.down_Z)

    with pytest.raises(ShapeMismatch, match="gate_up bias of expert 0 of layer 0"):
        load(Other(SHAPE))


def shared_cut(layer: LayerWeights) -> LayerWeights:
    experts: list[SharedExpert] = []
    for expert in layer.shared:
        assert isinstance(expert.weights, DenseWeights)
        experts.append(replace(expert, weights=cut(expert.weights)))
    return replace(layer, shared=tuple(experts))


CHANGES: list[tuple[Change, type[Exception], str]] = [
    (lambda w: replace(w, router=Uncorrected()), ImpossibleRouting, "said to be corrected"),
    (
        lambda w: replace(w, router=Corrected(torch.full((8,), torch.nan))),
        ImpossibleRouting,
        "not finite",
    ),
    (
        lambda w: replace(w, router=Corrected(torch.zeros(8, dtype=torch.int64))),
        ImpossibleRouting,
        "a correction of torch.int64",
    ),
    (lambda w: replace(w, gate_XD=w.gate_XD[:1]), ShapeMismatch, "gate of layer 0"),
    (lambda w: replace(w, shared=()), ShapeMismatch, "shared experts of layer 0"),
    (shared_cut, ShapeMismatch, "w13 of shared expert 0 of layer 0"),
]


@pytest.mark.parametrize(("change", "error", "says"), CHANGES)
def test_what_a_layer_has_beside_its_experts_is_what_the_shape_says(
    change: Change, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        load(changed(change)(SHAPE))


def test_a_correction_that_the_shape_does_not_tell_of_is_refused() -> None:
    def corrected(layer: LayerWeights) -> LayerWeights:
        return replace(layer, router=Corrected(torch.zeros(8)))

    with pytest.raises(ImpossibleRouting, match="said to be uncorrected"):
        load(changed(corrected)(stack_of(KINDS["softmax"])))
