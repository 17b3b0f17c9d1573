"""What ranks that live serve on with: F42, and what holds for every placement.

Axes    L MoE layers   P slots
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.domain.errors import CannotServeOn
from eplb_service.domain.liveness import only_on
from eplb_service.domain.placement import EMPTY, Placement, placement_from_ranks
from eplb_service.domain.rules import violations
from eplb_service.domain.survivors import filled, without
from tests.domain.sound import sound_placements


def test_f42_h_the_only_lost_expert_gets_the_slot_of_a_double_and_nothing_else_changes() -> None:
    before = placement_from_ranks([[[0, 1, 2], [3, 4, 5], [0, 3, 5]]], num_experts=6)
    left = without(before, [1])
    assert left.phy2log.tolist() == [[0, 1, 2, 0, 3, 5]]
    assert left.layout.slots_per_rank == (3, 3), "no slot of the dead rank is left to name"
    served = filled(left)
    assert served.lost.tolist() == [[0, 4]]
    assert served.placement.phy2log.tolist() == [[4, 1, 2, 0, 3, 5]]
    assert served.fills.tolist() == [[0, 4, 0]]
    assert not violations(served.placement)


def test_empty_slots_are_filled_before_any_replica_is_given_up() -> None:
    left = placement_from_ranks([[[0, 1], [0, EMPTY]]], num_experts=3)
    assert filled(left).placement.phy2log.tolist() == [[0, 1, 0, 2]]


def test_the_expert_with_most_replicas_gives_first_and_ranks_fill_in_turn() -> None:
    rows = [[[0, 1, 2], [0, 1, 3], [0, 4, 5]]]
    served = filled(placement_from_ranks(rows, num_experts=8))
    assert served.lost.tolist() == [[0, 6], [0, 7]]
    assert served.placement.phy2log.tolist() == [[6, 1, 2, 7, 1, 3, 0, 4, 5]]


def test_a_lost_shared_expert_gets_a_slot_and_a_kept_one_never_gives_its_own() -> None:
    left = placement_from_ranks([[[0, 1, 4], [1, 2, 4]]], num_experts=4, num_shared=2)
    with pytest.raises(CannotServeOn, match="layer 0: 6 slots"):
        filled(left)
    left = placement_from_ranks([[[0, 1, 3], [1, 2, 0]]], num_experts=3, num_shared=2)
    served = filled(left)
    assert served.lost.tolist() == [[0, 4]]
    assert served.placement.phy2log.tolist() == [[4, 1, 3, 1, 2, 0]]


def test_too_few_slots_are_refused_with_both_numbers_and_the_way_out() -> None:
    before = placement_from_ranks([[[0, 1], [2, 3], [0, 2]]], num_experts=4)
    left = without(before, [0])
    assert filled(left).lost.tolist() == [[0, 1]]
    with pytest.raises(
        CannotServeOn, match=r"layer 0: 2 slots .* cannot hold 4 experts; 2 more .*start"
    ):
        filled(without(before, [0, 1]))


@pytest.mark.parametrize("dead", [[0, 1, 2], [3], [-1]])
def test_ranks_that_are_not_there_or_all_of_them_are_refused(dead: list[int]) -> None:
    before = placement_from_ranks([[[0, 1], [2, 3], [0, 2]]], num_experts=4)
    with pytest.raises(CannotServeOn, match="of 3 ranks"):
        without(before, dead)


@given(placement=sound_placements, data=st.data())
def test_what_is_served_on_with_is_sound_and_changes_no_slot_that_it_need_not(
    placement: Placement, data: st.DataObject
) -> None:
    ranks = range(placement.layout.num_ranks)
    dead = data.draw(st.sets(st.sampled_from(ranks), max_size=len(ranks) - 1))
    left = without(placement, dead)
    try:
        served = filled(left)
    except CannotServeOn:
        assert left.layout.num_slots < placement.num_experts
        return
    assert not violations(served.placement)
    assert served.lost.tolist() == only_on(placement, dead).tolist()
    changed = np.argwhere(served.placement.phy2log != left.phy2log)
    assert sorted(served.fills[:, [0, 2]].tolist()) == changed.tolist()
    assert len(changed) == len(served.lost), "one slot for each lost expert"
    again = filled(without(placement, dead))
    assert again.placement.digest() == served.placement.digest()
