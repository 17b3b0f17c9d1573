"""A main model and a draft in one process, over the same peers: nothing of one serves the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import EmptySlotReached
from moe_runtime.contracts.exchange_errors import GroupLost
from moe_runtime.runtime import (
    EMPTY,
    Alone,
    Batch,
    ByGate,
    DenseReference,
    ExchangeMode,
    Install,
    MoeRuntime,
    Peers,
    Phase,
    StackShape,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
)
from tests.runtime.stacks import IntArray, kimi_like, random_layout, tokens
from tests.runtime.threads import run_threads

DECODE = Step(StepKind.REAL, Phase.DECODE)
MAIN = kimi_like()
DRAFT = replace(
    kimi_like(num_layers=1, num_experts=4, top_k=1, width=16),
    latent=None,
    num_shared=1,
    activation=SwiGLU(),
)
SLOTS = {MAIN: (4, 5), DRAFT: (3, 2)}


def runtime_of(shape: StackShape, peers: Peers, mode: ExchangeMode) -> MoeRuntime:
    start = random_layout(shape, SLOTS[shape], seed=6).start(peers.rank, staging_rows=5)
    return MoeRuntime(SyntheticModel(shape), start, peers=peers, mode=mode)


@pytest.mark.parametrize("main_mode", ExchangeMode)
@pytest.mark.parametrize("draft_mode", ExchangeMode)
def test_two_shapes_serve_in_turn_each_in_a_mode_of_its_own(
    main_mode: ExchangeMode, draft_mode: ExchangeMode
) -> None:
    turns = (DRAFT, DRAFT, MAIN, DRAFT, MAIN)

    def serve(peers: Peers) -> list[Tensor]:
        of_shape = {
            MAIN: runtime_of(MAIN, peers, main_mode),
            DRAFT: runtime_of(DRAFT, peers, draft_mode),
        }
        return [
            of_shape[shape].forward(
                Batch.of(tokens(shape, turn + peers.rank, seed=turn), ByGate(), DECODE)
            )
            for turn, shape in enumerate(turns)
        ]

    references = {shape: DenseReference(SyntheticModel(shape)) for shape in SLOTS}
    for rank, outputs in enumerate(run_threads(serve, num_ranks=2)):
        for turn, (shape, y_TD) in enumerate(zip(turns, outputs, strict=True)):
            want_TD = references[shape].forward(tokens(shape, turn + rank, seed=turn), ByGate())
            torch.testing.assert_close(y_TD.double(), want_TD, rtol=1e-4, atol=1e-4)


def refill(runtime: MoeRuntime, layer: int, held_S: IntArray) -> None:
    for slot, expert in enumerate(held_S.tolist()):
        fresh = runtime.expert(layer, expert).named()
        for name, staged in runtime.slots.staging_tensors(slot).items():
            staged.copy_(fresh[name][0])
    runtime.install(layer, [Install(slot, slot) for slot in range(len(held_S))], held_S)


@pytest.mark.parametrize("mode", ExchangeMode)
def test_a_step_that_fails_on_a_rank_alone_leaves_nothing_for_the_next(mode: ExchangeMode) -> None:
    """Experts that are gone stop a step in its middle; once they are back, all is as before."""
    start = random_layout(MAIN, (9,), seed=6).start(0, staging_rows=9)
    runtime = MoeRuntime(SyntheticModel(MAIN), start, peers=Alone(), mode=mode)
    given = Batch.of(tokens(MAIN, 20, seed=0), ByGate(), DECODE)
    before, held_S = runtime.forward(given), runtime.held()[1]
    runtime.install(1, [], np.full_like(held_S, EMPTY))
    with pytest.raises(EmptySlotReached):
        runtime.forward(given)
    refill(runtime, 1, held_S)
    assert torch.equal(before, runtime.forward(given))


@pytest.mark.parametrize("mode", ExchangeMode)
def test_a_step_that_fails_on_all_ranks_loses_their_group_since_none_knows_of_the_others(
    mode: ExchangeMode,
) -> None:
    def serve(peers: Peers) -> None:
        runtime = runtime_of(MAIN, peers, mode)
        given = Batch.of(tokens(MAIN, 20, seed=peers.rank), ByGate(), DECODE)
        runtime.install(1, [], np.full_like(runtime.held()[1], EMPTY))
        with pytest.raises(EmptySlotReached):
            runtime.forward(given)
        with pytest.raises(GroupLost, match="EmptySlotReached"):
            runtime.install(1, [], runtime.held()[1])

    run_threads(serve, num_ranks=2)
