"""Ranks that are about to exchange in different ways are told apart before any row is sent."""

import pytest

from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.runtime import (
    Batch,
    ByGate,
    ExchangeMode,
    MoeRuntime,
    Packing,
    Peers,
    Phase,
    Step,
    StepKind,
    SyntheticModel,
    WeightFormat,
)
from tests.runtime.stacks import kimi_like, random_layout, tokens
from tests.runtime.threads import run_threads

SHAPE = kimi_like()
DIRECT = ExchangeMode.ALL_TO_ALL


@pytest.mark.parametrize(
    "of_rank",
    [
        [(ExchangeMode.ALL_GATHER, Packing()), (DIRECT, Packing())],
        [(DIRECT, Packing(WeightFormat.W8A8)), (DIRECT, Packing(WeightFormat.W8A8_FP8))],
    ],
    ids=["mode", "format"],
)
def test_what_differs_between_ranks_of_plain_modes_is_refused_at_the_step(
    of_rank: list[tuple[ExchangeMode, Packing]],
) -> None:
    """A runtime of these modes is built without its peers, so the step's announcement tells."""
    layout = random_layout(SHAPE, (6, 6), seed=8)

    def attempt(peers: Peers) -> str:
        mode, packing = of_rank[peers.rank]
        runtime = MoeRuntime(
            SyntheticModel(SHAPE),
            layout.start(peers.rank),
            peers=peers,
            mode=mode,
            packing=packing,
        )
        step = Step(StepKind.REAL, Phase.DECODE)
        with pytest.raises(RanksDisagree) as told:
            runtime.forward(Batch.of(tokens(SHAPE, 2, seed=0), ByGate(), step))
        return str(told.value)

    told = run_threads(attempt, num_ranks=2)
    assert told[0] == told[1]
    assert "how tokens are exchanged must be the same on every rank" in told[0]
