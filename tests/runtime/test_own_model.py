"""A model of one's own is written with the front door alone, and computes what its docs say.

Axes    T tokens   L layers   E experts   D model width   Z latent width   I expert width   F = 2 I
        S slots   N adapters   R rank of an adapter   K experts per token
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

import moe_runtime.runtime as door
from moe_runtime.contracts.torch_calls import from_array, to_ints

D, Z, INNER, E, K, R = 12, 8, 6, 4, 2, 3
SHAPE = door.StackShape(
    num_layers=2,
    width=D,
    intermediate=INNER,
    selector=door.SelectorSettings(
        num_experts=E, top_k=K, scoring=door.Scoring.SIGMOID, renormalise=True, factor=2.0
    ),
    activation=door.SwiGLU(),
    latent=door.LatentShape(Z, normed=True),
    num_shared=1,
    corrected=True,
    biased=True,
)
WIDE = torch.float64


def drawn(*shape: int, seed: tuple[int, ...], dtype: torch.dtype = WIDE) -> Tensor:
    """Numbers that float32 has."""
    numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return from_array(numbers).to(dtype)


@dataclass(frozen=True)
class Own:
    """Meets `Model`."""

    shape: door.StackShape = SHAPE

    def layer(self, layer: int, dtype: torch.dtype) -> door.LayerWeights:
        def part(*shape: int, number: int) -> Tensor:
            return drawn(*shape, seed=(layer, number), dtype=dtype)

        shared = door.SharedExpert(
            door.DenseWeights(part(1, 2 * INNER, D, number=0), part(1, D, INNER, number=1)),
            door.ExpertGate(part(1, D, number=2)),
        )
        return door.LayerWeights(
            gate_XD=part(E, D, number=3),
            router=door.Corrected(part(E, number=4)),
            path=door.NormedLatent(part(Z, D, number=5), part(Z, number=6), part(D, Z, number=7)),
            shared=(shared,),
        )

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> door.DenseWeights:
        return door.DenseWeights(
            drawn(1, 2 * INNER, Z, seed=(layer, expert, 0), dtype=dtype),
            drawn(1, Z, INNER, seed=(layer, expert, 1), dtype=dtype),
        )

    def bias(self, layer: int, expert: int, dtype: torch.dtype) -> door.ExpertBias:
        return door.ExpertBias(
            drawn(2 * INNER, seed=(layer, expert, 2), dtype=dtype),
            drawn(Z, seed=(layer, expert, 3), dtype=dtype),
        )


def adapters(layer: int) -> door.ExpertAdapters:
    return door.ExpertAdapters(
        drawn(1, E, R, Z, seed=(layer, 50), dtype=torch.float32),
        drawn(1, E, 2 * INNER, R, seed=(layer, 51), dtype=torch.float32),
        drawn(1, E, R, INNER, seed=(layer, 52), dtype=torch.float32),
        drawn(1, E, Z, R, seed=(layer, 53), dtype=torch.float32),
    )


def normed(x: Tensor) -> Tensor:
    return x / (x.square().mean() + 1e-6).sqrt()


def swiglu(gate_up: Tensor) -> Tensor:
    return silu(gate_up[:INNER]) * gate_up[INNER:]


def by_hand(model: Own, x: Tensor, *, adapted: bool) -> Tensor:
    """What the docs of `Model` say, for one token, in float64."""
    for index in range(SHAPE.num_layers):
        w, lora = model.layer(index, WIDE), adapters(index)
        assert isinstance(w.path, door.NormedLatent)
        assert isinstance(w.router, door.Corrected)
        h = normed(x)
        scores = (w.gate_XD @ h).sigmoid()
        chosen = (scores + w.router.correction_X).topk(K).indices
        weights = 2.0 * scores[chosen] / scores[chosen].sum()
        z, total = w.path.down_ZD @ h, torch.zeros(Z, dtype=WIDE)
        for weight, e in zip(weights, to_ints(chosen), strict=True):
            expert, bias = model.expert(index, e, WIDE), model.bias(index, e, WIDE)
            gate_up = expert.w13_SFZ[0] @ z + bias.gate_up_F
            if adapted:
                gate_up += lora.b13_NEFR[0, e].double() @ (lora.a13_NERZ[0, e].double() @ z)
            hidden = swiglu(gate_up)
            y = expert.w2_SZI[0] @ hidden + bias.down_Z
            if adapted:
                y += lora.b2_NEZR[0, e].double() @ (lora.a2_NERI[0, e].double() @ hidden)
            total += weight * y
        routed = w.path.up_DZ @ (normed(total) * w.path.norm_Z)
        shared = w.shared[0]
        assert isinstance(shared.weights, door.DenseWeights)
        assert isinstance(shared.gate, door.ExpertGate)
        beside = shared.weights.w2_SZI[0] @ swiglu(shared.weights.w13_SFZ[0] @ h)
        x = x + routed + beside * (shared.gate.gate_1D @ h).sigmoid()
    return x


def test_a_model_written_with_the_front_door_computes_what_its_docs_say() -> None:
    start = door.Start(
        door.SlotLayout((E,)),
        [[*range(E)]] * SHAPE.num_layers,
        [[[e] for e in range(E)]] * SHAPE.num_layers,
        staging_rows=0,
    )
    traffic = door.Traffic(mode=door.ExchangeMode.ALL_TO_ALL, num_adapters=1)
    runtime = door.MoeRuntime(Own(), start, peers=door.Alone(), mode=traffic)
    runtime.load_adapters([adapters(layer) for layer in range(SHAPE.num_layers)])
    x_TD = drawn(6, D, seed=(99,), dtype=torch.float32)
    ids_T = torch.tensor([0, -1, 0, -1, 0, -1])
    batch = door.Batch(
        x_TD,
        torch.ones(6, dtype=torch.bool),
        door.ByGate(),
        door.Step(door.StepKind.REAL, door.Phase.DECODE),
        adapters=door.AdapterIds(ids_T),
    )
    expected = [
        by_hand(Own(), x.to(WIDE), adapted=i == 0)
        for x, i in zip(x_TD, to_ints(ids_T), strict=True)
    ]
    torch.testing.assert_close(
        runtime.forward(batch).to(WIDE), torch.stack(expected), rtol=1e-4, atol=1e-4
    )
    ids = door.DenseReference(Own()).forward(x_TD[1:2], door.ByGate())
    torch.testing.assert_close(ids[0], expected[1])


def test_every_type_that_a_model_hands_over_is_at_the_front_door() -> None:
    wanted = {
        "LayerWeights", "DenseWeights", "SharedExpert", "Ungated", "UNGATED", "ExpertGate",
        "RoutedPath", "Direct", "Latent", "NormedLatent", "RouterTensors", "Uncorrected",
        "Corrected", "HashTable", "ExpertBias", "RoutingFunction",
    }  # fmt: skip
    assert wanted <= set(door.__all__)
