"""Reported cases of how tokens travel and of what routers chose, with the numbers reported."""

import pytest
import torch

from moe_runtime.capture.layouts import PaddedBlocks, own_rows
from moe_runtime.contracts.exchange_errors import CaptureUnavailable
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.contracts.stages import Routed
from moe_runtime.exchange.fused_mc2 import Overflow
from moe_runtime.placement.maps import remap
from moe_runtime.runtime import refuse_impossible


def routed(*experts: int) -> Routed:
    ids_TK = torch.tensor([experts])
    return Routed(torch.ones((1, 2)), LogicalIds(ids_TK), torch.ones(ids_TK.shape))


@pytest.mark.parametrize(
    ("phy2log", "slots"), [([3, 0, 1, 2, 3, 0], [4, 3]), ([0, 1, 2, 3, 0, 1], [3, 2])]
)
def test_f27_what_the_router_chose_stays_what_it_was(phy2log: list[int], slots: list[int]) -> None:
    table_EJ = torch.tensor([[max(s for s, e in enumerate(phy2log) if e == x)] for x in range(4)])
    chosen = routed(3, 2)
    placed = remap(chosen, table_EJ, layer=0)
    assert placed.slots.ids_TK.numpy().tolist() == [slots]
    assert chosen.experts.ids_TK.numpy().tolist() == [[3, 2]]
    assert placed.experts.ids_TK.numpy().tolist() == [[3, 2]]


def test_f28_padded_blocks_give_each_rank_its_own_tokens() -> None:
    ids = LogicalIds(torch.tensor([[1], [2], [3], [4], [0], [0]]))
    own = [own_rows(ids, PaddedBlocks((3, 1), 3), rank=rank) for rank in range(2)]
    assert [o.ids_TK.reshape(-1).numpy().tolist() for o in own] == [[1, 2, 3], [4]]


def test_f29_a_buffer_that_was_never_written_is_no_data() -> None:
    with pytest.raises(CaptureUnavailable, match="capture unavailable: 12 of 12 tokens"):
        refuse_impossible(torch.zeros((12, 4, 2), dtype=torch.uint8), num_experts=8)


def test_f52_overflow_is_what_is_beyond_the_capacity() -> None:
    assert Overflow((4, 0, 11), 8).rows == 3


def test_f68_the_table_is_applied_once() -> None:
    table_EJ = torch.tensor([[2], [0], [3], [1]])
    assert remap(routed(0, 1, 2, 3), table_EJ, layer=0).slots.ids_TK.numpy().tolist() == [
        [2, 0, 3, 1]
    ]
