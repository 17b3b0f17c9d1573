"""Tables that avoid slots which lost what they hold."""

import numpy as np

from eplb_service.domain.detours import Place, around, others_of, place_number, place_of
from eplb_service.domain.placement import placement_from_ranks

PLACED = placement_from_ranks([[[0, 1, 2], [3, 0, 1], [0, 2, -1]]], num_experts=4)
TABLE = np.array([[[0, 4, 6], [1, 1, 5], [2, 2, 2], [3, 3, 3]]], dtype=np.int32)


def test_rows_that_named_the_slot_take_the_other_replicas_in_turn() -> None:
    after = around(TABLE, PLACED, [Place(0, 4)])
    assert after.tolist() == [[[0, 6, 6], [1, 1, 5], [2, 2, 2], [3, 3, 3]]]
    assert around(TABLE, PLACED, [Place(0, 2)])[0, 2].tolist() == [7, 7, 7]
    assert TABLE[0, 0, 1] == 4, "the ordered table was written to"


def test_slots_that_are_avoided_together_take_no_turn_of_each_other() -> None:
    after = around(TABLE, PLACED, [Place(0, 0), Place(0, 6)])
    assert after[0, 0].tolist() == [4, 4, 4]


def test_the_only_slot_of_an_expert_stays_named_and_has_no_others() -> None:
    lost = Place(0, 3)
    assert others_of(PLACED, lost, [lost]).tolist() == []
    assert around(TABLE, PLACED, [lost]).tolist() == TABLE.tolist()
    assert others_of(PLACED, Place(0, 8), []).tolist() == [], "an empty slot has no replicas"


def test_numbers_of_slots_begin_at_one_and_come_back() -> None:
    numbers = [place_number(*place, num_slots=9) for place in np.ndindex(3, 9)]
    assert numbers == list(range(1, 28))
    assert [place_of(number, num_slots=9) for number in (1, 9, 10)] == [
        Place(0, 0),
        Place(0, 8),
        Place(1, 0),
    ]
