"""Only the tokens of real steps are load, by the word of the rank that sent them."""

import numpy as np
import pytest
import torch

from moe_runtime.contracts.errors import DummyStepWithTokens
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ByLogits,
    CounterSnapshot,
    ExchangeMode,
    MoeRuntime,
    Peers,
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
from tests.runtime.threads import run_threads

E4 = StackShape(
    num_layers=1,
    width=8,
    intermediate=4,
    selector=SelectorSettings(num_experts=4, top_k=2, scoring=Scoring.SOFTMAX),
    activation=SwiGLU(),
)
REAL = [(1, 2), (1, 3), (2, 3), (1, 2), (0, 1)]
PADDING = [(0, 1)] * 3


def alone(mode: ExchangeMode) -> MoeRuntime:
    start = Start(SlotLayout((4,)), [[0, 1, 2, 3]], [[[0], [1], [2], [3]]], staging_rows=1)
    return MoeRuntime(SyntheticModel(E4), start, peers=Alone(), mode=mode)


def chosen(pairs: list[tuple[int, int]], real: int, step: Step) -> Batch:
    logits = torch.zeros((1, len(pairs), 4))
    for row, pair in enumerate(pairs):
        logits[0, row, list(pair)] = 5.0
    real_T = torch.arange(len(pairs)) < real
    return Batch(tokens(E4, len(pairs), seed=0), real_T, ByLogits(logits), step)


@pytest.mark.parametrize("mode", ExchangeMode)
def test_padding_rows_are_not_load(mode: ExchangeMode) -> None:
    runtime = alone(mode)
    runtime.forward(chosen(REAL + PADDING, 5, Step(StepKind.REAL, Phase.DECODE)))
    counted = runtime.counters()
    assert counted.received_HLS[Phase.DECODE, 0].tolist() == [1, 4, 3, 2]
    assert counted.sent_HLE[Phase.DECODE, 0].tolist() == [1, 4, 3, 2]
    assert counted.tokens_H.tolist() == [0, 5]
    assert counted.padding_rows == 3


@pytest.mark.parametrize("kind", [StepKind.WARMUP, StepKind.PROFILE])
def test_warm_up_and_profile_steps_compute_and_are_not_load(kind: StepKind) -> None:
    runtime = alone(ExchangeMode.ALL_TO_ALL)
    real = runtime.forward(chosen(REAL, 5, Step(StepKind.REAL, Phase.PREFILL)))
    before = runtime.counters()
    again = runtime.forward(chosen(REAL, 5, Step(kind, Phase.PREFILL)))
    # A profile step spreads its tokens over all experts instead; what it returns is not used.
    assert torch.equal(real, again) is (kind is StepKind.WARMUP)
    after = runtime.counters()
    assert (after.received_HLS == before.received_HLS).all()
    assert (after.sent_HLE == before.sent_HLE).all()
    assert after.tokens_H.tolist() == [5, 0]
    assert after.steps_G[kind] == 1
    assert after.expert_seconds == before.expert_seconds > 0


def test_dummy_steps_are_counted_by_kind_only() -> None:
    runtime = alone(ExchangeMode.ALL_GATHER)
    runtime.forward(Batch.dummy(E4.width))
    counted = runtime.counters()
    assert counted.steps_G.tolist() == [0, 1, 0, 0]
    assert not counted.received_HLS.any()


def test_a_dummy_step_must_not_bring_tokens() -> None:
    with pytest.raises(DummyStepWithTokens, match="rank 0 announced a dummy step with 5"):
        alone(ExchangeMode.ALL_GATHER).forward(chosen(REAL, 5, Step(StepKind.DUMMY, Phase.DECODE)))


def test_a_snapshot_does_not_change_afterwards() -> None:
    runtime = alone(ExchangeMode.ALL_GATHER)
    early = runtime.counters()
    runtime.forward(chosen(REAL, 5, Step(StepKind.REAL, Phase.DECODE)))
    assert not early.received_HLS.any()
    assert not early.steps_G.any()


@pytest.mark.parametrize("mode", ExchangeMode)
def test_what_a_rank_receives_is_load_of_the_senders_phase(mode: ExchangeMode) -> None:
    shape = kimi_like()
    layout = random_layout(shape, (3, 4, 3), seed=5)
    steps = [
        Step(StepKind.REAL, Phase.PREFILL),
        Step(StepKind.REAL, Phase.DECODE),
        Step(StepKind.WARMUP, Phase.DECODE),
    ]
    rows = [7, 5, 9]

    def serve(peers: Peers) -> CounterSnapshot:
        start = layout.start(peers.rank)
        runtime = MoeRuntime(SyntheticModel(shape), start, peers=peers, mode=mode)
        x_TD = tokens(shape, rows[peers.rank], seed=peers.rank)
        runtime.forward(Batch.of(x_TD, ByGate(), steps[peers.rank]))
        return runtime.counters()

    counted = run_threads(serve, num_ranks=3)
    received = np.concatenate([c.received_HLS for c in counted], axis=2)
    assert received[Phase.PREFILL].sum(axis=1).tolist() == [7 * 3] * 2
    assert received[Phase.DECODE].sum(axis=1).tolist() == [5 * 3] * 2
    # The rank that warms up computes the others' tokens, and those are load.
    assert counted[2].received_HLS.any()
    assert not counted[2].sent_HLE.any()
