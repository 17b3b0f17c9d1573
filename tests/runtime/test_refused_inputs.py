"""What a careless caller may hand over, and what would be computed from it without a word."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from moe_runtime.contracts.errors import BadInstall, BadTable, ShapeMismatch
from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ByLogits,
    ExchangeMode,
    Install,
    MoeRuntime,
    Nodes,
    Packing,
    Peers,
    Phase,
    Replicated,
    StackShape,
    Start,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
    Traffic,
    WeightFormat,
)
from tests.runtime.routings import KINDS, stack_of, token_ids
from tests.runtime.stacks import random_layout, tokens
from tests.runtime.threads import run_threads

SHAPE = stack_of(KINDS["sigmoid corrected"])
DECODE = Step(StepKind.REAL, Phase.DECODE)
X_TD = tokens(SHAPE, 6, seed=1)
START = random_layout(SHAPE, (10,), seed=1).start(0)


def runtime(start: Start = START) -> MoeRuntime:
    return MoeRuntime(SyntheticModel(SHAPE), start, peers=Alone(), mode=ExchangeMode.ALL_TO_ALL)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
def test_tokens_and_logits_of_no_models_dtype_are_refused(dtype: torch.dtype) -> None:
    """int8 rows are those of a quantised layer: a router that reads them chooses by noise."""
    with pytest.raises(ShapeMismatch, match="x_TD of"):
        runtime().forward(Batch.of(X_TD.to(dtype), ByGate(), DECODE))
    logits = torch.zeros((SHAPE.num_layers, 6, SHAPE.num_candidates)).to(dtype)
    with pytest.raises(ShapeMismatch, match="logits_LTE of"):
        runtime().forward(Batch.of(X_TD, ByLogits(logits), DECODE))


@pytest.mark.parametrize("mode", ExchangeMode)
def test_strides_of_what_is_given_change_nothing(mode: ExchangeMode) -> None:
    served = MoeRuntime(SyntheticModel(SHAPE), START, peers=Alone(), mode=mode)
    right = served.forward(Batch.of(X_TD, ByGate(), DECODE))
    for given in (X_TD.t().contiguous().t(), torch.cat((X_TD, X_TD), dim=1)[:, : SHAPE.width]):
        got = served.forward(Batch.of(given, ByGate(), DECODE))
        assert torch.allclose(got, right, rtol=1e-5, atol=1e-4)
    same = X_TD[:1].expand(6, -1)
    rows = served.forward(Batch.of(same, ByGate(), DECODE))
    alone = served.forward(Batch.of(same.contiguous(), ByGate(), DECODE))
    assert torch.allclose(rows, alone, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_that_is_not_a_number_spoils_its_own_token_alone(kind: str) -> None:
    shape = stack_of(KINDS[kind], num_layers=1)
    layout = random_layout(shape, (10,), seed=1)
    served = MoeRuntime(
        SyntheticModel(shape), layout.start(0), peers=Alone(), mode=ExchangeMode.ALL_TO_ALL
    )
    given = replace(
        Batch.of(tokens(shape, 4, seed=1), ByGate(), DECODE), token_ids=token_ids(shape, 4, seed=1)
    )
    logits = torch.randn((1, 4, shape.num_candidates))
    right = served.forward(replace(given, router=ByLogits(logits)))
    logits[0, 2] = torch.nan
    got = served.forward(replace(given, router=ByLogits(logits)))
    others = torch.tensor([True, True, False, True])
    assert torch.allclose(got[others], right[others], rtol=1e-5, atol=1e-4)
    assert not got[2].isfinite().any()


@pytest.mark.parametrize("layer", [-1, SHAPE.num_layers])
def test_there_is_no_layer_before_the_first_or_after_the_last(layer: int) -> None:
    served = runtime()
    table, held = served.tables()[0], served.held()[0]
    for refused, error in (
        (lambda: served.set_table(layer, table), BadTable),
        (lambda: served.install(layer, [], held), BadInstall),
        (lambda: served.slots.expert_tensors(layer, 0), BadInstall),
        (lambda: served.expert(layer, 0), ShapeMismatch),
    ):
        with pytest.raises(error):
            refused()
    assert (served.held() == np.asarray(START.held_LS)).all()


@pytest.mark.parametrize("expert", [-1, SHAPE.num_experts])
def test_an_expert_that_no_model_has_is_not_made(expert: int) -> None:
    with pytest.raises(ShapeMismatch, match=f"expert {expert} of layer 0"):
        runtime().expert(0, expert)


def test_numbers_that_are_not_whole_are_not_cut_to_size() -> None:
    served = runtime()
    held, table = served.held()[0], served.tables()[0]
    with pytest.raises(ShapeMismatch, match="held_S of float64"):
        served.install(0, [Install(0, 0)], held + 0.4)
    with pytest.raises(ShapeMismatch, match="table_EJ of float64"):
        served.set_table(0, table + 0.4)
    for part in ("held_LS", "tables_LEJ"):
        with pytest.raises(ShapeMismatch, match=f"{part} of float64"):
            runtime(replace(START, **{part: np.asarray(getattr(START, part)) + 0.4}))


WRONG_STARTS: list[dict[str, object]] = [
    {"held_LS": np.where(np.asarray(START.held_LS) == 0, 77, START.held_LS)},
    {"held_LS": np.where(np.asarray(START.held_LS) == 0, -2, START.held_LS)},
    {"tables_LEJ": np.zeros((SHAPE.num_layers, SHAPE.num_experts, 0), dtype=np.int64)},
    {"staging_rows": -1},
]


@pytest.mark.parametrize("wrong", WRONG_STARTS)
def test_a_start_that_no_rank_can_have_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ShapeMismatch):
        runtime(replace(START, **wrong))


@pytest.mark.parametrize(
    "size", [{"num_layers": 0}, {"width": 0}, {"intermediate": 0}, {"num_shared": -1}]
)
def test_a_stack_of_no_size_is_refused(size: dict[str, int]) -> None:
    with pytest.raises(ShapeMismatch, match="a stack"):
        replace(SHAPE, **size)


def test_groups_of_a_format_that_has_none_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="groups of w8a8 weights"):
        Packing(WeightFormat.W8A8, group_size=8)
    with pytest.raises(ShapeMismatch, match="groups of w4a8 weights"):
        Packing(WeightFormat.W4A8, group_size=-8)


@pytest.mark.parametrize("mode", [ExchangeMode.ALL_GATHER, ExchangeMode.ALL_TO_ALL])
def test_a_team_that_holds_other_tokens_than_it_says_is_refused_on_every_rank(
    mode: ExchangeMode,
) -> None:
    """As many rows, of which one differs: each rank would add up parts of different tokens."""
    drawn = random_layout(SHAPE, (6, 5), seed=2)
    layout = replace(drawn, tables_NLEJ=np.repeat(drawn.tables_NLEJ[:1], 2, axis=0))

    def work(peers: Peers, *, alike: bool) -> torch.Tensor:
        served = MoeRuntime(
            SyntheticModel(SHAPE),
            layout.start(peers.rank),
            peers=peers,
            mode=Traffic(mode=mode, spread=Replicated(2)),
        )
        x_TD = tokens(SHAPE, 4, seed=1)
        real_T = torch.tensor([True, True, True, False])
        x_TD[3] = peers.rank  # padding may be anything
        if not alike:
            x_TD[1, 2] += peers.rank
        return served.forward(Batch(x_TD, real_T, ByGate(), DECODE))[:3]

    one, other = run_threads(lambda peers: work(peers, alike=True), num_ranks=2)
    assert torch.equal(one, other)

    def refused(peers: Peers) -> None:
        with pytest.raises(RanksDisagree, match="the tokens that 2 ranks of a team hold alike"):
            work(peers, alike=False)

    run_threads(refused, num_ranks=2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Traffic(mode=ExchangeMode.MC2, buffer_rows=-1),
        lambda: Traffic(mode=ExchangeMode.MC2, buffer_rows=1.5),  # pyright: ignore[reportArgumentType]
        lambda: Traffic(mode=ExchangeMode.MC2, num_adapters=-1),
        lambda: Nodes(0),
    ],
)
def test_settings_that_no_traffic_has_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ShapeMismatch, match="a whole number"):
        wrong()


OTHERWISE: dict[str, Callable[[StackShape], tuple[StackShape, torch.dtype, Packing]]] = {
    "dtype": lambda shape: (shape, torch.float64, Packing()),
    "format of the same rows": lambda shape: (
        shape,
        torch.float32,
        Packing(WeightFormat.W4A16),
    ),
    "activation": lambda shape: (
        replace(shape, activation=SwiGLU(0.5)),
        torch.float32,
        Packing(),
    ),
    "factor": lambda shape: (
        replace(shape, selector=replace(KINDS["sigmoid corrected"].routing, factor=1.0)),
        torch.float32,
        Packing(),
    ),
    "top-k": lambda shape: (
        replace(shape, selector=replace(KINDS["sigmoid corrected"].routing, top_k=2)),
        torch.float32,
        Packing(),
    ),
}


@pytest.mark.parametrize("what", OTHERWISE)
@pytest.mark.parametrize("mode", ExchangeMode)
def test_ranks_that_serve_another_model_do_not_step_together(mode: ExchangeMode, what: str) -> None:
    layout = random_layout(SHAPE, (6, 5), seed=2)

    def work(peers: Peers) -> None:
        shape, dtype, packing = (
            OTHERWISE[what](SHAPE) if peers.rank else (SHAPE, torch.float32, Packing())
        )
        with pytest.raises(RanksDisagree):
            MoeRuntime(
                SyntheticModel(shape),
                layout.start(peers.rank),
                peers=peers,
                mode=mode,
                dtype=dtype,
                packing=packing,
            ).forward(Batch.of(tokens(shape, 3, seed=1), ByGate(), DECODE))

    run_threads(work, num_ranks=2)
