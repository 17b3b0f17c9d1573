"""Every view of a placement is derived from phy2log, as other engines derive theirs.

The vectors are those that vllm-ascend and vLLM pin in their own tests.
"""

import numpy as np
import pytest
from hypothesis import given

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.layout import SlotLayout, uniform_layout
from eplb_service.domain.placement import Placement, initial_placement, placement_from_ranks
from tests.domain.sound import sound_placements

FLAT = initial_placement(
    num_layers=1,
    num_experts=8,
    layout=uniform_layout(num_experts=8, num_ranks=2, num_redundant=2),
)
FROM_FILE = placement_from_ranks([[[7, 2, 0, 3, 5], [6, 1, 4, 7, 2]]], num_experts=8)


def of_rows(rows: list[list[int]], num_experts: int) -> Placement:
    return Placement(np.array(rows, dtype=np.int32), num_experts, SlotLayout((len(rows[0]),)))


def test_the_initial_placement_starts_again_after_the_last_expert() -> None:
    assert FLAT.phy2log.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]]
    twice = initial_placement(num_layers=1, num_experts=8, layout=SlotLayout((4,) * 4))
    assert twice.phy2log.tolist() == [[*range(8), *range(8)]]


@pytest.mark.parametrize(
    ("placement", "rank", "local"),
    [
        (FLAT, 0, [0, 1, 2, 3, 4, -1, -1, -1]),
        (FLAT, 1, [3, 4, -1, -1, -1, 0, 1, 2]),
        (FROM_FILE, 0, [2, -1, 1, 3, -1, 4, -1, 0]),
        (FROM_FILE, 1, [-1, 1, 4, -1, 2, -1, 0, 3]),
    ],
)
def test_the_expert_map_names_local_slots(
    placement: Placement, rank: int, local: list[int]
) -> None:
    assert placement.expert_map(rank).tolist() == [local]


def test_without_redundancy_every_expert_has_one_slot() -> None:
    layout = uniform_layout(num_experts=8, num_ranks=2, num_redundant=0)
    placement = initial_placement(num_layers=1, num_experts=8, layout=layout)
    assert placement.expert_map(1).tolist() == [[-1, -1, -1, -1, 0, 1, 2, 3]]


def test_log2phy_lists_slots_in_order_and_pads() -> None:
    placement = of_rows([[0, 1, 2, 3, 0, 1], [0, 2, 0, 1, 0, 3]], 4)
    assert placement.log2phy().tolist() == [
        [[0, 4, -1], [1, 5, -1], [2, -1, -1], [3, -1, -1]],
        [[0, 2, 4], [3, -1, -1], [1, -1, -1], [5, -1, -1]],
    ]
    assert placement.replica_count().tolist() == [[2, 2, 1, 1], [3, 1, 1, 1]]


def test_log2phy_of_the_shorter_vector() -> None:
    placement = of_rows([[0, 1, 2, 0], [1, 2, 0, 1]], 3)
    assert placement.log2phy().tolist() == [
        [[0, 3], [1, -1], [2, -1]],
        [[2, -1], [0, 3], [1, -1]],
    ]
    assert placement.replica_count().tolist() == [[2, 1, 1], [1, 2, 1]]


def test_empty_slots_are_in_no_view() -> None:
    placement = of_rows([[0, 1, -1, 2, 3, -1], [3, -1, 2, 1, 0, -1]], 4)
    assert placement.replica_count().tolist() == [[1] * 4, [1] * 4]
    assert placement.log2phy()[:, :, 0].tolist() == [[0, 1, 3, 4], [4, 3, 2, 0]]


def test_shared_experts_in_slots_are_in_no_view_of_routed_ones() -> None:
    rows = [[[0, 1, 2, 8], [2, 3, 4, 8], [4, 5, 6, 8], [6, 7, 0, 8]]]
    placement = placement_from_ranks(rows, num_experts=8, num_shared=1)
    assert placement.replica_count().tolist() == [[2, 1, 2, 1, 2, 1, 2, 1]]
    assert placement.expert_map(3).tolist() == [[2, -1, -1, -1, -1, -1, 0, 1]]
    assert not {3, 7, 11, 15} & set(placement.log2phy().ravel().tolist())


@given(placement=sound_placements)
def test_all_views_tell_the_same(placement: Placement) -> None:
    log2phy, counts = placement.log2phy(), placement.replica_count()
    assert ((log2phy >= 0).sum(axis=2) == counts).all()
    assert counts.sum() == placement.routed().sum()
    layers, experts, at = np.nonzero(log2phy >= 0)
    slots = log2phy[layers, experts, at]
    assert (placement.phy2log[layers, slots] == experts).all()
    for rank in range(placement.layout.num_ranks):
        local = placement.expert_map(rank)
        layers, experts = np.nonzero(local >= 0)
        held = placement.phy2log[layers, placement.layout.base(rank) + local[layers, experts]]
        assert (held == experts).all()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[0, 1, 2]], "shape"),
        ([[[0, 1]]], "shape"),
    ],
)
def test_a_map_of_the_wrong_shape_is_refused(rows: list[list[int]], text: str) -> None:
    with pytest.raises(InvalidTable, match=text):
        Placement(np.array(rows, dtype=np.int32), 2, SlotLayout((1, 1)))


def test_a_map_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(InvalidTable, match="int64; expected int32"):
        Placement(np.array([[0, 1]]), 2, SlotLayout((1, 1)))


def test_a_placement_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        FLAT.phy2log[0, 0] = 3
