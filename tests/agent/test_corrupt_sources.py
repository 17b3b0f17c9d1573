"""A slot that no longer holds what was put there is not spread: its wave ends, and a halt names it.

Axes    L layers   P slots of all ranks
"""

from dataclasses import dataclass

import pytest
import torch

from eplb_service.domain.placement import placement_from_ranks
from eplb_service.protocol.messages import Dropped, DropReason, Halted
from moe_runtime.runtime import Batch
from tests.agent.scripts import Script, Spent, order_of, waves_between
from tests.agent.serving import WIDTH, Case, served
from tests.runtime.ranks import run_ranks
from worker_agent.ports.engine import StepKind

CASE = Case(2, 1, 3, 4)
OLD = placement_from_ranks([[[0, 1, 2], [3, 0, 1]]], num_experts=4)
NEW = placement_from_ranks([[[0, 1, 3], [2, 0, 3]]], num_experts=4)
"""Rank 1 sends expert 3 to rank 0, copies it to another slot of its own, and receives expert 2."""
NEVER = 1 << 30
MAX_STEPS = 400


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank said of the wave and of the halt."""

    reasons: list[DropReason]
    halts: list[str]
    epoch: int


def play(rank: int, payload: None) -> Told:
    """Run on every rank: rank 1's slot 0 loses a bit after the start, then a wave reads it."""
    del payload
    script = Script()
    (wave,) = waves_between(OLD, NEW, staging_rows=4, round_rows=8)
    with served(CASE, rank, OLD, script, on_corruption="serve") as serving:

        def step() -> None:
            serving.hook.before_step()
            serving.runtime.forward(Batch.dummy(WIDTH, dtype=torch.float64))
            serving.hook.after_step(StepKind.DUMMY)
            serving.num_steps += 1

        for _ in range(20):
            step()
        if rank == 1:
            serving.runtime.slots.expert_tensors(0, 0)["w2"].view(-1)[0] *= -1
        spent = Spent(wave, base_epoch=0, epoch=1, expires_at_step=NEVER)
        script.say(order_of(spent, rank=rank, incarnation=script.incarnation))
        while not serving.hook.state().is_halted:
            assert serving.num_steps < MAX_STEPS, f"rank {rank}: no halt"
            step()
        for _ in range(4):
            step()
        epoch = serving.hook.state().epoch
    return Told(
        reasons=[word.reason for word in script.words if isinstance(word, Dropped)],
        halts=[word.halt.reason for word in script.words if isinstance(word, Halted)],
        epoch=epoch,
    )


@pytest.mark.processes
@pytest.mark.slow
def test_a_corrupt_slot_is_not_spread_and_the_group_halts_by_its_name() -> None:
    told = run_ranks(play, None, num_ranks=2)
    assert [one.epoch for one in told] == [0, 0]
    assert told[1].reasons == [DropReason.DIGEST_MISMATCH]
    assert told[0].reasons in ([DropReason.DIGEST_MISMATCH], [DropReason.HALTED]), (
        "the halt may be agreed before this rank has looked at what came"
    )
    assert "layer 0" in told[1].halts[0]
    assert "local slot 0" in told[1].halts[0]
    assert "expert 3" in told[1].halts[0]
    assert len(told[0].halts) == 1
