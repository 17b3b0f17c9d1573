"""Captured ids are the router's, of a rank's own tokens, or there are none."""

import pytest
import torch

from moe_runtime.contracts.errors import CaptureUnavailable, ShapeMismatch
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.contracts.stages import Routed
from moe_runtime.placement.maps import remap
from moe_runtime.routing.captured import (
    Concatenated,
    OwnRows,
    PaddedBlocks,
    RowLayout,
    own_rows,
    refuse_impossible,
)


def ids(*rows: int) -> LogicalIds:
    return LogicalIds(torch.tensor(rows)[:, None])


@pytest.mark.parametrize(
    ("phy2log", "slots"), [([3, 0, 1, 2, 3, 0], [4, 3]), ([0, 1, 2, 3, 0, 1], [3, 2])]
)
def test_f27_the_routers_ids_stay_what_they_were_when_slots_are_chosen(
    phy2log: list[int], slots: list[int]
) -> None:
    """E4 R2 S3: the choice is (3, 2), before and after a rebalance."""
    table_EJ = torch.tensor([[max(s for s, e in enumerate(phy2log) if e == x)] for x in range(4)])
    routed = Routed(torch.ones((1, 2)), LogicalIds(torch.tensor([[3, 2]])), torch.ones((1, 2)))
    placed = remap(routed, table_EJ, layer=0)
    assert placed.slots.ids_TK.numpy().tolist() == [slots]
    assert routed.experts.ids_TK.numpy().tolist() == [[3, 2]]


@pytest.mark.parametrize(
    ("layout", "captured", "rank", "want"),
    [
        (PaddedBlocks((3, 1), 3), ids(1, 2, 3, 4, 0, 0), 0, [1, 2, 3]),
        (PaddedBlocks((3, 1), 3), ids(1, 2, 3, 4, 0, 0), 1, [4]),
        (Concatenated((3, 1)), ids(1, 2, 3, 4), 0, [1, 2, 3]),
        (Concatenated((3, 1)), ids(1, 2, 3, 4), 1, [4]),
        (Concatenated((1, 0, 1)), ids(5, 6), 1, []),
        (OwnRows(), ids(7), 1, [7]),
    ],
)
def test_f28_the_layout_tells_whose_rows_they_are(
    layout: RowLayout, captured: LogicalIds, rank: int, want: list[int]
) -> None:
    own = own_rows(captured, layout, rank=rank)
    assert own.ids_TK.reshape(-1).numpy().tolist() == want


@pytest.mark.parametrize(
    "layout", [Concatenated((3, 2)), PaddedBlocks((3, 1), 4), PaddedBlocks((3, 1), 2)]
)
def test_ids_of_another_layout_are_refused_and_not_guessed_at(layout: RowLayout) -> None:
    with pytest.raises(ShapeMismatch):
        own_rows(ids(1, 2, 3, 4), layout, rank=0)


def test_f29_a_buffer_that_was_never_written_is_no_data() -> None:
    with pytest.raises(CaptureUnavailable, match="12 tokens have an expert twice"):
        refuse_impossible(torch.zeros((12, 2), dtype=torch.uint8), num_experts=8)


@pytest.mark.parametrize(
    ("row", "told"),
    [([0.0, 1.0], "expected integers"), ([0, 8], "0 to 7"), ([-1, 2], "0 to 7")],
)
def test_ids_that_no_router_could_have_chosen_are_no_data(row: list[float], told: str) -> None:
    with pytest.raises(CaptureUnavailable, match=told):
        refuse_impossible(torch.tensor([row]), num_experts=8)


def test_possible_ids_are_handed_on() -> None:
    ids_TK = torch.tensor([[3, 2], [0, 7]], dtype=torch.int16)
    assert refuse_impossible(ids_TK, num_experts=8).ids_TK.numpy().tolist() == [[3, 2], [0, 7]]
