"""Each part of a layer has the kind, the size, the dtype and the numbers that a model's shape says.

Axes    X experts to choose from   D model width   Z width of the routed part   S slots
        F gate and up   I expert width
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.experts.shared import ExpertGate, SharedExpert
from moe_runtime.layer.parts import Direct, Latent, LayerWeights, NormedLatent
from moe_runtime.runtime import (
    IN_SLOTS,
    Alone,
    Batch,
    ByGate,
    ExchangeMode,
    LatentShape,
    MoeRuntime,
    Packing,
    Phase,
    Start,
    Step,
    StepKind,
    SyntheticModel,
    WeightFormat,
)
from moe_runtime.runtime.model import ExpertBias, SharedInSlots, StackShape
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import random_layout
from tests.runtime.test_models_that_misfit import SHAPE, Change, changed, load

PLAIN = stack_of(KINDS["softmax"])
WIDTH = PLAIN.width
LATENT = replace(PLAIN, latent=LatentShape(WIDTH, normed=False))
NORMED = replace(PLAIN, latent=LatentShape(WIDTH, normed=True))
SHARED = replace(PLAIN, num_shared=1)


def load_in(model: SyntheticModel, dtype: torch.dtype) -> None:
    start = random_layout(model.shape, (10,), seed=1).start(0)
    MoeRuntime(model, start, peers=Alone(), mode=ExchangeMode.ALL_TO_ALL, dtype=dtype)


def latent(weights: LayerWeights) -> LayerWeights:
    path = weights.path
    assert isinstance(path, NormedLatent)
    return replace(weights, path=Latent(path.down_ZD, path.up_DZ))


def normed(change: Callable[[NormedLatent], NormedLatent]) -> Change:
    def changed_path(weights: LayerWeights) -> LayerWeights:
        assert isinstance(weights.path, NormedLatent)
        return replace(weights, path=change(weights.path))

    return changed_path


def shared(change: Callable[[SharedExpert], SharedExpert]) -> Change:
    return lambda w: replace(w, shared=tuple(change(expert) for expert in w.shared))


def dense(change: Callable[[DenseWeights], DenseWeights]) -> Change:
    def changed_weights(expert: SharedExpert) -> SharedExpert:
        assert isinstance(expert.weights, DenseWeights)
        return replace(expert, weights=change(expert.weights))

    return shared(changed_weights)


def square() -> Latent:
    return Latent(torch.ones((WIDTH, WIDTH)), torch.ones((WIDTH, WIDTH)))


PARTS: dict[str, tuple[StackShape, Change, str]] = {
    "said normed, is not": (NORMED, latent, "path of layer 0, a Latent,.* a NormedLatent"),
    "said not normed, is": (
        LATENT,
        lambda w: replace(
            w, path=NormedLatent(square().down_ZD, torch.ones(WIDTH), square().up_DZ)
        ),
        "path of layer 0, a NormedLatent,.* a Latent",
    ),
    "said latent, is direct": (NORMED, lambda w: replace(w, path=Direct()), "layer 0, a Direct,"),
    "said direct, is latent": (PLAIN, lambda w: replace(w, path=square()), "layer 0, a Latent,"),
    "up of one row": (
        NORMED,
        normed(lambda p: replace(p, up_DZ=p.up_DZ[:1])),
        "up_DZ of layer 0",
    ),
    "down of one row": (
        NORMED,
        normed(lambda p: replace(p, down_ZD=p.down_ZD[:1])),
        "down_ZD of layer 0",
    ),
    "norm of one number": (
        NORMED,
        normed(lambda p: replace(p, norm_Z=p.norm_Z[:1])),
        "norm_Z of layer 0",
    ),
    "norm of another dtype": (
        NORMED,
        normed(lambda p: replace(p, norm_Z=p.norm_Z.double())),
        "norm_Z of layer 0, of torch.float64,.*torch.float32",
    ),
    "down of another dtype": (
        NORMED,
        normed(lambda p: replace(p, down_ZD=p.down_ZD.half())),
        "down_ZD of layer 0, of torch.float16,",
    ),
    "up that is not finite": (
        NORMED,
        normed(lambda p: replace(p, up_DZ=p.up_DZ / 0)),
        "up_DZ of layer 0, not finite",
    ),
    "gate of no numbers": (
        PLAIN,
        lambda w: replace(w, gate_XD=w.gate_XD * torch.nan),
        "gate of layer 0, not finite",
    ),
    "gate of another dtype": (
        PLAIN,
        lambda w: replace(w, gate_XD=w.gate_XD.double()),
        "gate of layer 0, of torch.float64,.*torch.float32",
    ),
    "gate of integers": (
        PLAIN,
        lambda w: replace(w, gate_XD=w.gate_XD.int()),
        "gate of layer 0, of torch.int32,",
    ),
    "gate that is sparse": (
        PLAIN,
        lambda w: replace(w, gate_XD=w.gate_XD.to_sparse()),
        "gate of layer 0, of torch.sparse_coo",
    ),
    "gates of slots": (
        PLAIN,
        lambda w: replace(w, in_slots=(ExpertGate(torch.ones((1, WIDTH))),)),
        "gates in slots of layer 0",
    ),
    "shared gate of a matrix": (
        SHARED,
        shared(lambda e: replace(e, gate=ExpertGate(torch.ones((WIDTH, WIDTH))))),
        "gate of shared expert 0 of layer 0",
    ),
    "shared gate of one number": (
        SHARED,
        shared(lambda e: replace(e, gate=ExpertGate(torch.ones((1, 1))))),
        "gate of shared expert 0 of layer 0",
    ),
    "shared gate of no numbers": (
        SHARED,
        shared(lambda e: replace(e, gate=ExpertGate(torch.full((1, WIDTH), torch.nan)))),
        "gate of shared expert 0 of layer 0, not finite",
    ),
    "shared of another dtype": (
        SHARED,
        dense(lambda w: DenseWeights(w.w13_SFZ.double(), w.w2_SZI.double())),
        "w13 of shared expert 0 of layer 0, of torch.float64",
    ),
    "shared of no numbers": (
        SHARED,
        dense(lambda w: DenseWeights(w.w13_SFZ, w.w2_SZI * torch.inf)),
        "w2 of shared expert 0 of layer 0, not finite",
    ),
}


@pytest.mark.parametrize("what", PARTS)
def test_every_part_of_a_layer_has_the_kind_the_size_the_dtype_and_the_numbers_that_it_must(
    what: str,
) -> None:
    shape, change, says = PARTS[what]
    load(SyntheticModel(shape))
    with pytest.raises(ShapeMismatch, match=says):
        load(changed(change)(shape))


PACKINGS = [Packing(kind) for kind in WeightFormat] + [IN_SLOTS]


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_shared_experts_are_checked_however_they_are_stored(
    packing: Packing | SharedInSlots,
) -> None:
    shape = replace(SHARED, shared_packing=packing)
    held = [[*range(shape.num_experts + shape.num_shared_in_slots)]] * shape.num_layers
    drawn = random_layout(shape, (len(held[0]),), seed=1)
    tables = [[[e] for e in range(shape.num_experts)]] * shape.num_layers
    in_slots = [[shape.num_experts]] * shape.num_layers if shape.num_shared_in_slots else ()
    start = Start(drawn.slots, held, tables, 1, shared_LM=in_slots)

    def build(change: Change) -> MoeRuntime:
        model = changed(change)(shape)
        return MoeRuntime(model, start, peers=Alone(), mode=ExchangeMode.ALL_TO_ALL)

    x = torch.ones((3, shape.width))
    step = Step(StepKind.REAL, Phase.DECODE)
    assert bool(build(lambda w: w).forward(Batch.of(x, ByGate(), step)).isfinite().all())
    with pytest.raises(ShapeMismatch, match="w13 of shared expert 0 of layer 0, not finite"):
        build(dense(lambda w: DenseWeights(w.w13_SFZ * torch.nan, w.w2_SZI)))
    with pytest.raises(ShapeMismatch, match="w13 of shared expert 0 of layer 0"):
        build(dense(lambda w: DenseWeights(w.w13_SFZ[:, ::2], w.w2_SZI[:, :, ::2])))
    with pytest.raises(ShapeMismatch, match="gate of shared expert 0 of layer 0"):
        build(shared(lambda e: replace(e, gate=ExpertGate(torch.ones((1, 1))))))


BIASES: list[tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype, str]] = [
    (lambda b: b.bool(), torch.float32, "of torch.bool,.*torch.float32"),
    (lambda b: b.int(), torch.float32, "of torch.int32,"),
    (lambda b: b.double(), torch.float32, "of torch.float64,"),
    (lambda b: b.float(), torch.bfloat16, "of torch.float32,.*torch.bfloat16"),
    (lambda b: b * torch.nan, torch.float32, "not finite in torch.float32"),
    (lambda b: b * 1e6, torch.float16, "not finite in torch.float16"),
]


@pytest.mark.parametrize(("change", "dtype", "says"), BIASES)
@pytest.mark.parametrize("which", ["gate_up", "down"])
def test_a_bias_is_finite_and_of_the_models_dtype(
    change: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, says: str, which: str
) -> None:
    class Other(SyntheticModel):
        def bias(self, layer: int, expert: int, dtype: torch.dtype) -> ExpertBias:
            whole = SyntheticModel.bias(self, layer, expert, dtype)
            if which == "gate_up":
                return ExpertBias(change(whole.gate_up_F), whole.down_Z)
            return ExpertBias(whole.gate_up_F, change(whole.down_Z))

    load_in(SyntheticModel(SHAPE), dtype)
    with pytest.raises(ShapeMismatch, match=f"{which} bias of expert 0 of layer 0, {says}"):
        load_in(Other(SHAPE), dtype)
