"""A stack on one rank: padding, precision, shapes of models, and what it refuses."""

import math
from dataclasses import replace
from threading import BrokenBarrierError

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import BadTable, EmptySlotReached, ShapeMismatch
from moe_runtime.layer.parts import Latent, NormedLatent
from moe_runtime.routing.kinds import Corrected
from moe_runtime.runtime import (
    EMPTY,
    Alone,
    Batch,
    ByGate,
    ByLogits,
    DenseReference,
    ExchangeMode,
    LatentShape,
    MoeRuntime,
    Phase,
    Scoring,
    SelectorSettings,
    SlotLayout,
    StackShape,
    Start,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
)
from tests.runtime.stacks import kimi_like, random_layout, tokens
from tests.runtime.threads import ThreadPeers, run_threads

DECODE = Step(StepKind.REAL, Phase.DECODE)

DEEPSEEK = StackShape(
    num_layers=2,
    width=16,
    intermediate=8,
    selector=SelectorSettings(
        num_experts=8,
        top_k=2,
        scoring=Scoring.SIGMOID,
        factor=2.5,
        num_groups=4,
        kept_groups=2,
    ),
    activation=SwiGLU(),
    num_shared=1,
    corrected=True,
)
QWEN = replace(
    DEEPSEEK,
    selector=SelectorSettings(num_experts=8, top_k=2, scoring=Scoring.SOFTMAX),
    num_shared=0,
    corrected=False,
)
MODELS = {
    "kimi": kimi_like(),
    "kimi of 64 experts": kimi_like(num_experts=64, top_k=8, width=48),
    "kimi without norm": replace(kimi_like(), latent=LatentShape(12, normed=False)),
    "deepseek": DEEPSEEK,
    "qwen": QWEN,
    "clamped": replace(QWEN, activation=SwiGLU(limit=2.0)),
}


def alone(
    shape: StackShape, *, mode: ExchangeMode, dtype: torch.dtype = torch.float32
) -> MoeRuntime:
    start = random_layout(shape, (shape.num_experts + 3,), seed=1, num_empty=1).start(0)
    return MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=mode, dtype=dtype)


def relative_error(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("mode", ExchangeMode)
@pytest.mark.parametrize("shape", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_every_model_gives_the_reference_output(
    shape: StackShape, mode: ExchangeMode, dtype: torch.dtype, tolerance: float
) -> None:
    x_TD = tokens(shape, 20, seed=4)
    got = alone(shape, mode=mode, dtype=dtype).forward(Batch.of(x_TD, ByGate(), DECODE))
    want = DenseReference(SyntheticModel(shape)).forward(x_TD, ByGate())
    assert got.dtype == dtype
    assert relative_error(got, want) < tolerance


def test_logits_from_outside_route_instead_of_the_gate() -> None:
    shape = MODELS["kimi"]
    x_TD = tokens(shape, 6, seed=4)
    draw = torch.Generator().manual_seed(9)
    given = ByLogits(torch.randn((shape.num_layers, 6, shape.num_experts), generator=draw))
    got = alone(shape, mode=ExchangeMode.ALL_TO_ALL).forward(Batch.of(x_TD, given, DECODE))
    reference = DenseReference(SyntheticModel(shape))
    assert relative_error(got, reference.forward(x_TD, given)) < 1e-5
    assert relative_error(got, reference.forward(x_TD, ByGate())) > 0.1


@pytest.mark.parametrize("mode", ExchangeMode)
def test_padding_rows_come_back_as_they_were_and_touch_nothing(mode: ExchangeMode) -> None:
    shape = MODELS["kimi"]
    x_TD = tokens(shape, 6, seed=4)
    real_T = torch.tensor([True, False, True, True, False, True])
    clean = alone(shape, mode=mode).forward(Batch.of(x_TD[real_T], ByGate(), DECODE))
    x_TD[1] = float("nan")
    got = alone(shape, mode=mode).forward(Batch(x_TD, real_T, ByGate(), DECODE))
    assert torch.equal(got[real_T], clean)
    assert got[1].isnan().all()
    assert torch.equal(got[4], x_TD[4])


def test_the_reference_equals_the_formula_written_out() -> None:
    """One layer of Kimi K3, one token at a time, with nothing shared with the runtime."""
    shape = replace(MODELS["kimi"], num_layers=1)
    model = SyntheticModel(shape)
    parts = model.layer(0, torch.float64)
    path = parts.path
    assert isinstance(path, NormedLatent)
    assert isinstance(parts.router, Corrected)

    def situ(gate_up: Tensor) -> Tensor:
        gate, up = gate_up[: shape.intermediate], gate_up[shape.intermediate :]
        return 4 * (gate / 4).tanh() / (1 + (-gate).exp()) * 25 * (up / 25).tanh()

    x_TD = tokens(shape, 5, seed=4).double()
    got = DenseReference(model).forward(x_TD, ByGate())
    for x_D, got_D in zip(x_TD, got, strict=True):
        normed_D = x_D / math.sqrt(float((x_D * x_D).mean()) + 1e-6)
        scores_E = 1 / (1 + (-(parts.gate_XD @ normed_D)).exp())
        chosen = torch.argsort(scores_E + parts.router.correction_X, descending=True)[:3]
        weights = 2.5 * scores_E[chosen] / scores_E[chosen].sum()
        latent_Z = path.down_ZD @ normed_D
        sum_Z = torch.zeros(12, dtype=torch.float64)
        for expert, weight in zip(chosen.numpy().tolist(), weights, strict=True):
            w = model.expert(0, expert, torch.float64)
            sum_Z = sum_Z + weight * (w.w2_SZI[0] @ situ(w.w13_SFZ[0] @ latent_Z))
        sum_Z = sum_Z / math.sqrt(float((sum_Z * sum_Z).mean()) + 1e-6) * path.norm_Z
        want_D = x_D + path.up_DZ @ sum_Z
        for shared in parts.shared:
            want_D = want_D + shared.weights.named()["w2"][0] @ situ(
                shared.weights.named()["w13"][0] @ normed_D
            )
        assert relative_error(got_D, want_D) < 1e-12


@pytest.mark.parametrize("shape", MODELS.values(), ids=MODELS.keys())
def test_any_two_experts_differ_by_more_than_one_for_every_token(shape: StackShape) -> None:
    """Every token's hindmost expert replaced by any other one: seen far outside rounding."""
    shape = replace(shape, num_layers=1)
    reference = DenseReference(SyntheticModel(shape))
    x_TD = tokens(shape, 50, seed=6)
    best = torch.arange(shape.selector.top_k)

    def by(last: int) -> Tensor:
        logits_E = torch.full((shape.num_experts,), -4.0)
        logits_E[best[:-1]] = 4.0
        logits_E[last] = 3.0
        return reference.forward(x_TD, ByLogits(logits_E.expand(1, 50, -1)))

    right = by(int(best[-1]))
    for wrong in range(shape.selector.top_k, shape.num_experts):
        assert ((by(wrong) - right).abs().amax(dim=1) > 1).all(), wrong


def test_an_own_slot_that_does_not_hold_the_expert_is_refused() -> None:
    runtime = alone(MODELS["kimi"], mode=ExchangeMode.ALL_GATHER)
    before = runtime.tables()
    table_EJ = before[0].copy()
    table_EJ[[0, 1]] = table_EJ[[1, 0]]
    with pytest.raises(BadTable, match=r"layer 0: experts \[0, 1\] are sent to slots of rank 0"):
        runtime.set_table(0, table_EJ)
    with pytest.raises(BadTable, match=r"shape \(8,\), not \(8, 1\)"):
        runtime.set_table(0, table_EJ[:, 0])
    assert np.array_equal(runtime.tables(), before)


def test_tokens_that_reach_an_empty_slot_stop_the_step() -> None:
    """Rank 0 names an empty slot of rank 1; only rank 1 can know, and it says so."""
    shape = replace(MODELS["kimi"], num_layers=1)
    held = [list(range(8)), [EMPTY]]

    def serve(peers: ThreadPeers) -> str:
        table_LEJ = np.arange(8).reshape(1, 8, 1)
        table_LEJ[0, 2] = 8 if peers.rank == 0 else 2
        start = Start(SlotLayout((8, 1)), [held[peers.rank]], table_LEJ, staging_rows=1)
        mode = ExchangeMode.ALL_TO_ALL
        runtime = MoeRuntime(SyntheticModel(shape), start, peers=peers, mode=mode)
        logits = torch.full((1, 1, 8), -3.0)
        logits[0, 0, 2] = 3.0
        busy = Batch.of(tokens(shape, 1, seed=0), ByLogits(logits), DECODE)
        with pytest.raises((EmptySlotReached, BrokenBarrierError)) as stopped:
            runtime.forward(busy if peers.rank == 0 else Batch.dummy(shape.width))
        peers.leave()
        return str(stopped.value)

    _, told = run_threads(serve, num_ranks=2)
    assert "layer 0, rank 1: tokens arrived at local slots [0], which are empty" in told


def test_a_start_that_does_not_fit_the_model_is_refused() -> None:
    shape = MODELS["kimi"]
    good = random_layout(shape, (9,), seed=1).start(0)
    wrong = {
        r"layout has shape \(2,\), expected \(1,\) ranks": replace(good, layout=SlotLayout((5, 4))),
        r"held_LS has shape \(2, 9\), expected \(2, 8\)": replace(good, layout=SlotLayout((8,))),
        r"tables_LEJ has shape \(2, 7, 1\), expected \(2, 8, 'J'\)": replace(
            good, tables_LEJ=np.zeros((2, 7, 1))
        ),
    }
    for told, start in wrong.items():
        with pytest.raises(ShapeMismatch, match=told):
            MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=ExchangeMode.ALL_GATHER)


def test_the_latent_without_norm_is_a_model_of_its_own() -> None:
    plain = SyntheticModel(MODELS["kimi without norm"]).layer(0, torch.float32)
    assert isinstance(plain.path, Latent)
