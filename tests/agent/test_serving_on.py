"""A rank is killed in the middle of a step; those that live serve on without it, right.

Axes    T tokens   L layers   E experts   S local slots
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import pytest
import torch
from torch import Tensor

from eplb_service.domain.errors import EplbError
from moe_runtime.contracts.torch_calls import new_group
from moe_runtime.exchange.peers import GroupPeers, Pending
from moe_runtime.runtime import (
    NO_SOURCE,
    Batch,
    ByGate,
    Checkpoint,
    DenseReference,
    ExchangeMode,
    ExpertSource,
    MoeError,
    MoeRuntime,
    Phase,
    SlotLayout,
    Start,
    Step,
    StepKind,
    SyntheticModel,
)
from tests.runtime.ranks import run_ranks
from tests.runtime.stacks import kimi_like, tokens
from worker_agent.adapters.serving_on import serve_on
from worker_agent.adapters.torch_calls import group_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SHAPE = kimi_like()
MODE = ExchangeMode.ALL_TO_ALL
DEADLINE_S = 3.0
DEAD = 1
LIVING = [0, 2, 3]
NUM_STEPS = 20
REDUNDANT = ((0, 1, 2), (3, 4, 5), (0, 6, 7), (3, 5, 1))
"""Expert 4 is on rank 1 alone."""
TIGHT = ((0, 1), (2, 3), (4, 5), (6, 7))
"""Six slots live, for eight experts."""


class Dying(GroupPeers):
    """A rank that is killed when it enters one of its exchanges."""

    num_entered = 0
    dies_at = -1

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        if self.num_entered == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.num_entered += 1
        return super().start_all_to_all(rows, sent, received, what=what)


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank that lives saw."""

    num_right: int
    """Steps before the death."""
    error: str
    seconds: float
    """That the step of the death took to end."""
    held: list[list[int]]
    num_right_after: int
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    dies_at: int
    """Exchanges that the dying rank enters after its runtime is built."""
    rows: tuple[tuple[int, ...], ...] = REDUNDANT
    has_source: bool = True


def start(rows: Sequence[Sequence[int]], rank: int) -> Start:
    flat = [expert for row in rows for expert in row]
    table = [[flat.index(expert)] for expert in range(SHAPE.num_experts)]
    layout = SlotLayout(tuple(len(row) for row in rows))
    return Start(layout, [rows[rank]] * 2, [table] * 2, staging_rows=1)


def stepping(runtime: MoeRuntime, rank: int) -> Callable[[int], None]:
    """Return what takes one step and holds its output against the reference."""
    reference = DenseReference(runtime.model)

    def step(number: int) -> None:
        x_TD = tokens(SHAPE, 1 + (number + rank) % 4, seed=100 * number + rank)
        batch = Batch.of(x_TD, ByGate(), Step(StepKind.REAL, Phase.DECODE))
        got, want = runtime.forward(batch), reference.forward(x_TD, ByGate()).float()
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)

    return step


def live_through_a_death(rank: int, case: Case) -> Told:
    peers = Dying(new_group(), deadline_s=DEADLINE_S)
    runtime = MoeRuntime(SyntheticModel(SHAPE), start(case.rows, rank), peers=peers, mode=MODE)
    if rank == DEAD:
        peers.num_entered, peers.dies_at = 0, case.dies_at
    step, num_right, began_s = stepping(runtime, rank), 0, monotonic()
    try:
        while True:
            began_s = monotonic()
            step(num_right)
            num_right += 1
    except MoeError as error:
        error_text, seconds = type(error).__name__, monotonic() - began_s
    living = group_of(LIVING, timeout_s=30)
    source: ExpertSource = Checkpoint(runtime) if case.has_source else NO_SOURCE
    try:
        after = serve_on(runtime, peers=GroupPeers(living, deadline_s=20), mode=MODE, source=source)
    except (EplbError, MoeError) as error:
        held, refusal = runtime.held().tolist(), f"{type(error).__name__}: {error}"
        return Told(num_right, error_text, seconds, held, 0, refusal)
    step = stepping(after, rank)
    for number in range(NUM_STEPS):
        step(number)
    return Told(num_right, error_text, seconds, after.held().tolist(), NUM_STEPS)


@pytest.mark.parametrize("dies_at", [21, 23, 25, 27])
def test_f42_a_rank_killed_in_mid_step_ends_that_step_and_not_the_group(dies_at: int) -> None:
    """Seven exchanges make a step: before, between and after those of its layers."""
    told = run_ranks(live_through_a_death, Case(dies_at), num_ranks=4, dying=[DEAD])
    assert [one.held[0] for one in told] == [[4, 1, 2], [0, 6, 7], [3, 5, 1]]
    for one in told:
        assert one.num_right in {3, 4}
        assert one.error in {"ExchangeFailed", "ExchangeLate"}
        assert one.seconds < DEADLINE_S + 5
        assert one.num_right_after == NUM_STEPS


def test_an_expert_without_a_replica_and_a_source_ends_serving_and_is_named() -> None:
    case = Case(23, has_source=False)
    told = run_ranks(live_through_a_death, case, num_ranks=4, dying=[DEAD])
    assert all(one.refusal.startswith("ExpertsLost") for one in told)
    assert "expert 4 of layer 0" in told[0].refusal
    assert all("start the group again" in one.refusal for one in told)


def test_too_few_slots_end_serving_with_both_numbers_on_every_rank() -> None:
    told = run_ranks(live_through_a_death, Case(23, TIGHT), num_ranks=4, dying=[DEAD])
    (refusal,) = {one.refusal for one in told}
    assert "6 slots of 3 ranks that live cannot hold 8 experts; 2 more" in refusal
    assert [one.held[0] for one in told] == [[0, 1], [4, 5], [6, 7]], "nothing was changed"
