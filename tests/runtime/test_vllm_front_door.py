# pyright: reportUnknownMemberType=false
# The rule is off in this file only, because torch leaves tolist() unannotated.
"""What the front door for vLLM does without vLLM: filling slots, exchanging nothing, declining."""

import numpy as np
import pytest
import torch

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import PlainRows
from moe_runtime.contracts.stages import Computed, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind, StepView
from moe_runtime.exchange.peers import Alone
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.vllm.factory import reasons_against
from moe_runtime.vllm.filling import Filler, initial_slots
from moe_runtime.vllm.replicated import ReplicatedExchange


def test_spare_slots_hold_their_experts_directly_after_loading() -> None:
    """Case F39: weights of expert e are 10 + e; what a loader left in spare slots is garbage."""
    content_P = initial_slots(4, 6)
    loaded_P = content_P.copy()
    loaded_P[4:] = -1
    stacks = {"w": torch.tensor([[10.0], [11.0], [12.0], [13.0], [-99.0], [float("nan")]])}
    filler = Filler(Alone(), SlotLayout((6,)))
    arrived = filler.bring(stacks, loaded_P, content_P)
    for slot, tensors in arrived.items():
        stacks["w"][slot].copy_(tensors["w"])
    assert stacks["w"][:, 0].tolist() == [10, 11, 12, 13, 10, 11]


def test_a_loaded_placement_swaps_experts_without_losing_one() -> None:
    stacks = {"w": torch.tensor([[0.0], [1.0], [2.0]])}
    arrived = Filler(Alone(), SlotLayout((3,))).bring(
        stacks, np.array([0, 1, 2]), np.array([2, 0, -1])
    )
    assert {slot: float(tensors["w"]) for slot, tensors in arrived.items()} == {0: 2.0, 1: 0.0}


def test_a_replicated_token_is_computed_once_over_all_ranks() -> None:
    """Case F26: two ranks hold expert 0, which doubles; the sum over ranks is 2x, not 4x."""
    layout = SlotLayout((2, 2))
    x_TZ = torch.tensor([[3.0]])
    placed = Placed(
        x_TZ, PhysicalIds(torch.tensor([[2]])), LogicalIds(torch.tensor([[0]])), torch.ones(1, 1)
    )
    total = torch.zeros_like(x_TZ)
    for rank in range(2):
        view = StepView(rank, (1, 1), (Step(StepKind.REAL, Phase.DECODE),) * 2)
        exchange = ReplicatedExchange(layout, CpuBackend())
        dispatched = exchange.dispatch(placed, view)
        assert dispatched.received_NS[rank].tolist() == ([1, 0] if rank == 1 else [0, 0])
        assert isinstance(dispatched.counts, GroupCounts)
        assert isinstance(dispatched.rows, PlainRows)
        computed = Computed(2 * dispatched.rows.x_MZ, dispatched.carry)
        total += exchange.combine(computed).x_TZ
    assert total.tolist() == [[6.0]]


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("has_bias", True),
        ("shared_expert_gate", object()),
        ("zero_expert_type", "identity"),
        ("fuse_shared_experts", True),
        ("enable_eplb", True),
        ("activation", "silu_no_mul"),
    ],
)
def test_what_the_runtime_has_not_is_named(keyword: str, value: object) -> None:
    (reason,) = reasons_against({keyword: value})
    assert keyword in reason


def test_an_ordinary_layer_is_taken() -> None:
    assert not reasons_against({"num_experts": 8, "activation": "silu"})
