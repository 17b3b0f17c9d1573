"""Weights that rot while nothing moves halt the group, by rank, layer, slot and expert."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from eplb_service.domain.placement import placement_from_ranks
from eplb_service.protocol.messages import Halted
from moe_runtime.runtime import Batch
from tests.agent.scripts import Script
from tests.agent.serving import WIDTH, Case, Serving, served
from tests.agent.test_movers import FakeMemory
from tests.runtime.ranks import run_ranks
from worker_agent.adapters.memory import DigestBook
from worker_agent.adapters.slow_audit import SlowAudit
from worker_agent.ports.engine import StepKind

CASE = Case(2, 1, 3, 4)
PLACED = placement_from_ranks([[[0, 1, 2], [3, 0, 1]]], num_experts=4)
MAX_STEPS = 2000
QUIET_STEPS = 400


def expert(serving: Serving, slot: int) -> Mapping[str, Tensor]:
    return serving.runtime.slots.expert_tensors(0, slot)


def flip_a_bit(serving: Serving) -> None:
    flat = expert(serving, 2)["w2"].view(-1).view(torch.uint8)
    flat[5] ^= 1


def swap_two_slots(serving: Serving) -> None:
    for name, tensor in expert(serving, 1).items():
        other = expert(serving, 2)[name]
        kept = tensor.clone()
        tensor.copy_(other)
        other.copy_(kept)


def lose_a_tensor(serving: Serving) -> None:
    """As a scale that was never loaded."""
    sorted(expert(serving, 1).items())[-1][1].zero_()


def leave_alone(serving: Serving) -> None:
    del serving


DAMAGE: dict[str, Callable[[Serving], None]] = {
    function.__name__: function
    for function in (flip_a_bit, swap_two_slots, lose_a_tensor, leave_alone)
}


@dataclass(frozen=True, slots=True)
class Told:
    halts: list[str]


def play(rank: int, damage: str) -> Told:
    """Run on every rank: rank 1 is damaged after 20 steps, and all serve on."""
    script = Script()
    limit = QUIET_STEPS if damage == "leave_alone" else MAX_STEPS
    with served(CASE, rank, PLACED, script) as serving:
        for step in range(limit):
            serving.hook.before_step()
            serving.runtime.forward(Batch.dummy(WIDTH, dtype=torch.float64))
            serving.hook.after_step(StepKind.DUMMY)
            serving.num_steps += 1
            if step == 20 and rank == 1:
                DAMAGE[damage](serving)
            if serving.hook.state().is_halted:
                break
        for _ in range(4):
            serving.hook.before_step()
            serving.runtime.forward(Batch.dummy(WIDTH, dtype=torch.float64))
            serving.hook.after_step(StepKind.DUMMY)
            serving.num_steps += 1
    return Told([word.halt.reason for word in script.words if isinstance(word, Halted)])


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "where"),
    [
        ("flip_a_bit", ("local slot 2", "expert 1")),
        ("swap_two_slots", ("local slot", "expert")),
        ("lose_a_tensor", ("local slot 1", "expert 0")),
    ],
)
def test_what_rots_in_memory_halts_the_group_by_its_name(
    damage: str, where: tuple[str, str]
) -> None:
    told = run_ranks(play, damage, num_ranks=2)
    assert [len(one.halts) > 0 for one in told] == [True, True]
    for part in ("layer 0", "rank 1", *where):
        assert part in told[1].halts[0]


@pytest.mark.processes
@pytest.mark.slow
def test_sound_weights_never_halt() -> None:
    assert [one.halts for one in run_ranks(play, "leave_alone", num_ranks=2)] == [[], []]


def rig() -> tuple[SlowAudit, FakeMemory, DigestBook]:
    memory, book = FakeMemory(0), DigestBook()
    for slot in ((0, 0), (1, 0)):
        book.note_slot(*slot, memory.digest(memory.slot(*slot)))
    return SlowAudit(book), memory, book


def test_a_slot_is_wrong_only_if_it_is_wrong_twice() -> None:
    audit, memory, _ = rig()
    memory.slot(1, 0)["w"][1] += 1
    assert [audit.look(memory) for _ in range(6)] == [None, None, (1, 0), None, None, None]


def test_a_slot_that_a_switch_was_just_writing_is_not_wrong() -> None:
    audit, memory, book = rig()
    memory.slot(1, 0)["w"][1] += 1
    assert [audit.look(memory) for _ in range(2)] == [None, None]
    book.note_row(0, memory.digest(memory.slot(1, 0)))
    book.install(1, 0, 0)
    assert [audit.look(memory) for _ in range(4)] == [None] * 4
