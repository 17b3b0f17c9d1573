"""Ranks that are about to exchange in different ways are told apart before any row is sent."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.runtime import (
    AdapterIds,
    Batch,
    ByGate,
    ByLogits,
    ExchangeMode,
    MoeRuntime,
    Packing,
    Peers,
    Phase,
    Replicated,
    Step,
    StepKind,
    SyntheticModel,
    Traffic,
    WeightFormat,
)
from tests.runtime.stacks import kimi_like, random_layout, tokens
from tests.runtime.test_lora import NUM, drawn
from tests.runtime.threads import run_threads

SHAPE = kimi_like()
DECODE = Step(StepKind.REAL, Phase.DECODE)
DIRECT = ExchangeMode.ALL_TO_ALL


@pytest.mark.parametrize(
    "of_rank",
    [
        [(ExchangeMode.ALL_GATHER, Packing()), (DIRECT, Packing())],
        [(DIRECT, Packing(WeightFormat.W8A8)), (DIRECT, Packing(WeightFormat.W8A8_FP8))],
        [(ExchangeMode.MC2, Packing()), (DIRECT, Packing())],
        [(Traffic(mode=DIRECT, spread=Replicated(2)), Packing()), (DIRECT, Packing())],
        [(Traffic(mode=DIRECT, num_adapters=1), Packing()), (DIRECT, Packing())],
    ],
    ids=["mode", "format", "mode of windows", "spread", "adapters"],
)
def test_what_differs_between_ranks_is_refused_when_they_are_built(
    of_rank: list[tuple[ExchangeMode | Traffic, Packing]],
) -> None:
    layout = random_layout(SHAPE, (6, 6), seed=8)

    def attempt(peers: Peers) -> str:
        mode, packing = of_rank[peers.rank]
        with pytest.raises(RanksDisagree) as told:
            MoeRuntime(
                SyntheticModel(SHAPE),
                layout.start(peers.rank),
                peers=peers,
                mode=mode,
                packing=packing,
            )
        return str(told.value)

    told = run_threads(attempt, num_ranks=2)
    assert told[0] == told[1]
    assert "how tokens are exchanged must be the same on every rank" in told[0]


def test_ranks_that_loaded_another_checkpoint_are_told_apart_before_a_row_is_sent() -> None:
    """By what all of them have of it: gates, latents and shared experts."""
    layout = random_layout(SHAPE, (6, 6), seed=8)

    def attempt(peers: Peers) -> str:
        model = SyntheticModel(SHAPE, seed=peers.rank)
        with pytest.raises(RanksDisagree) as told:
            MoeRuntime(model, layout.start(peers.rank), peers=peers, mode=DIRECT)
        return str(told.value)

    told = run_threads(attempt, num_ranks=2)
    assert told[0] == told[1]


def by_other_logits(rank: int, given: Batch) -> Batch:
    logits = torch.zeros((SHAPE.num_layers, 4, SHAPE.num_experts))
    logits[:, :, rank] = 1
    return replace(given, router=ByLogits(logits))


def by_logits_or_gate(rank: int, given: Batch) -> Batch:
    return by_other_logits(0, given) if rank else given


def with_other_adapters(rank: int, given: Batch) -> Batch:
    return replace(given, adapters=AdapterIds(torch.tensor([0, 0, rank, 0])))


@pytest.mark.parametrize("differ", [by_other_logits, by_logits_or_gate, with_other_adapters])
def test_a_team_whose_tokens_are_alike_and_routed_or_adapted_otherwise_is_refused(
    differ: Callable[[int, Batch], Batch],
) -> None:
    drawn_layout = random_layout(SHAPE, (6, 6), seed=8)
    alike = np.repeat(drawn_layout.tables_NLEJ[:1], 2, axis=0)
    layout = replace(drawn_layout, tables_NLEJ=alike)
    traffic = Traffic(mode=ExchangeMode.ALL_GATHER, spread=Replicated(2), num_adapters=NUM)

    def attempt(peers: Peers) -> str:
        runtime = MoeRuntime(
            SyntheticModel(SHAPE), layout.start(peers.rank), peers=peers, mode=traffic
        )
        runtime.load_adapters(drawn())
        given = differ(peers.rank, Batch.of(tokens(SHAPE, 4, seed=0), ByGate(), DECODE))
        with pytest.raises(RanksDisagree) as told:
            runtime.forward(given)
        return str(told.value)

    told = run_threads(attempt, num_ranks=2)
    assert all("the tokens that 2 ranks of a team hold alike" in text for text in told)
