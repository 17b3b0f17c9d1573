"""Slots are spread over ranks, or the settings are refused with ones that work."""

import pytest

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.layout import SlotLayout, uniform_layout


@pytest.mark.parametrize(
    ("num_experts", "num_ranks", "usable"),
    [(128, 6, "4, 10, 16"), (256, 3, "2, 5, 8")],
    ids=["F07-a", "F07-b"],
)
def test_redundancy_that_does_not_divide_is_refused_with_some_that_does(
    num_experts: int, num_ranks: int, usable: str
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        uniform_layout(num_experts=num_experts, num_ranks=num_ranks, num_redundant=0)
    text = str(refused.value)
    assert text.endswith(f"redundancy that divides: {usable}")
    assert f"{num_experts} experts" in text
    assert f"{num_ranks} ranks" in text


def test_redundancy_that_is_offered_is_never_more_than_the_ranks_can_hold() -> None:
    with pytest.raises(InvalidSettings, match=r"redundancy that divides: 1, 3$"):
        uniform_layout(num_experts=3, num_ranks=2, num_redundant=0)
    for offered in (1, 3):
        uniform_layout(num_experts=3, num_ranks=2, num_redundant=offered)


def test_more_slots_than_distinct_replicas_are_refused() -> None:
    """Case F09-a: E2 R2 S3."""
    with pytest.raises(InvalidSettings) as refused:
        uniform_layout(num_experts=2, num_ranks=2, num_redundant=4)
    assert "6 slots" in str(refused.value)
    assert "at most 4 distinct replicas" in str(refused.value)
    assert "redundancy to at most 2" in str(refused.value)


@pytest.mark.parametrize(
    ("num_experts", "num_ranks", "num_redundant"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)]
)
def test_impossible_counts_are_refused(
    num_experts: int, num_ranks: int, num_redundant: int
) -> None:
    with pytest.raises(InvalidSettings, match="expected at least 1, 1 and 0"):
        uniform_layout(num_experts=num_experts, num_ranks=num_ranks, num_redundant=num_redundant)


def test_more_ranks_than_experts_are_possible() -> None:
    """Case F09-b's shape: E3 R4 S2."""
    layout = uniform_layout(num_experts=3, num_ranks=4, num_redundant=5)
    assert layout.slots_per_rank == (2, 2, 2, 2)


def test_unequal_ranks_number_their_slots_by_running_sum() -> None:
    layout = SlotLayout((2, 0, 3))
    assert (layout.num_ranks, layout.num_slots) == (3, 5)
    assert [layout.base(rank) for rank in range(3)] == [0, 2, 2]
    assert layout.rank_of_slot().tolist() == [0, 0, 2, 2, 2]
    assert layout.local_slot().tolist() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("slots", [(), (0, 0), (2, -1)])
def test_a_layout_needs_slots(slots: tuple[int, ...]) -> None:
    with pytest.raises(InvalidSettings, match="at least one slot"):
        SlotLayout(slots)
