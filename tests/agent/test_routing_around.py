"""A slot that lost its expert: all ranks route around it at the next agreement, and it is filled.

Over two real ranks. Expert 1 has a replica on each; expert 3 is on rank 1 alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from eplb_service.domain.placement import placement_from_ranks
from eplb_service.protocol.messages import Halted
from moe_runtime.runtime import Batch
from tests.agent.scripts import Script
from tests.agent.serving import WIDTH, Case, Serving, served
from tests.runtime.ranks import run_ranks
from worker_agent.ports.engine import StepKind
from worker_agent.ports.failures import ExpertCorrupt

CASE = Case(2, 1, 3, 4)
PLACED = placement_from_ranks([[[0, 1, 2], [3, 0, 1]]], num_experts=4)
MAX_STEPS = 3000
AFTER = 400


@dataclass(frozen=True, slots=True)
class Told:
    halts: list[str]
    avoids: bool
    """Whether some step after the halt was dispatched without the slot."""
    is_right: bool
    """Whether slot and table are at the end what they were at the start."""
    is_halted: bool
    ended: str


def flip(serving: Serving, local_slot: int) -> None:
    flat = serving.runtime.slots.expert_tensors(0, local_slot)["w2"].view(-1).view(torch.uint8)
    flat[5] ^= 1


def lose_replicated(serving: Serving) -> None:
    flip(serving, 2)


def lose_single(serving: Serving) -> None:
    flip(serving, 0)


def make_table_stale(serving: Serving) -> None:
    table = serving.runtime.tables()[0]
    table[1] = 1
    serving.runtime.set_table(0, table)


DAMAGE: dict[str, Callable[[Serving], None]] = {
    one.__name__: one for one in (lose_replicated, lose_single, make_table_stale)
}


def play(rank: int, damage: str) -> Told:
    script = Script()
    slot_of_expert_1 = 5
    with served(CASE, rank, PLACED, script) as serving:
        before = serving.runtime.tables().copy()
        digests = [content(serving, slot) for slot in range(3)]
        avoids, ended = False, ""
        try:
            for step in range(MAX_STEPS):
                one_step(serving)
                if step == 20 and rank == 1:
                    DAMAGE[damage](serving)
                state = serving.hook.state()
                if state.is_halted:
                    avoids |= not bool((serving.runtime.tables()[0, 1] == slot_of_expert_1).any())
                    break
            for _ in range(AFTER):
                one_step(serving)
        except ExpertCorrupt as error:
            ended = str(error)
        is_right = (
            bool((serving.runtime.tables()[:, [0, 2, 3]] == before[:, [0, 2, 3]]).all())
            and [content(serving, slot) for slot in range(3)] == digests
        )
        return Told(
            [word.halt.reason for word in script.words if isinstance(word, Halted)],
            avoids,
            is_right,
            serving.hook.state().is_halted,
            ended,
        )


def one_step(serving: Serving) -> None:
    serving.hook.before_step()
    serving.runtime.forward(Batch.dummy(WIDTH, dtype=torch.float64))
    serving.hook.after_step(StepKind.DUMMY)
    serving.num_steps += 1


def content(serving: Serving, local_slot: int) -> list[bytes]:
    tensors = serving.runtime.slots.expert_tensors(0, local_slot)
    return [tensors[name].numpy().tobytes() for name in sorted(tensors)]


@pytest.mark.processes
@pytest.mark.slow
def test_all_ranks_route_around_the_slot_at_the_halt_and_it_is_filled_from_the_other() -> None:
    told = run_ranks(play, "lose_replicated", num_ranks=2)
    assert "expert 1" in told[1].halts[0]
    for one in told:
        assert (one.avoids, one.is_right, one.is_halted, one.ended) == (True, True, True, "")


@pytest.mark.processes
@pytest.mark.slow
def test_where_no_other_replica_is_good_the_group_ends_and_names_the_expert() -> None:
    told = run_ranks(play, "lose_single", num_ranks=2)
    for rank, one in enumerate(told):
        for part in (f"rank {rank} ends", "layer 0", "slot 3 of rank 1", "expert 3"):
            assert part in one.ended


@pytest.mark.processes
@pytest.mark.slow
def test_a_stale_table_halts_the_group_and_is_put_right_at_once() -> None:
    told = run_ranks(play, "make_table_stale", num_ranks=2)
    assert "the dispatch table of rank 1 is stale: layer 0" in told[1].halts[0]
    assert all(one.is_halted and one.is_right and not one.ended for one in told)
