"""Rules look at all of a placement, report all that is wrong, and change nothing."""

import numpy as np
import pytest
from hypothesis import given

from eplb_service.domain.errors import InvalidPlacement, InvalidTable, MisfitPlacement
from eplb_service.domain.heat import even_slot_load, rank_load
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.rules import (
    kept_experts_keep_their_slot,
    require_fit,
    require_sound,
    shared_slots_stay,
    violations,
)
from tests.domain.sound import sound_placements


def found(rows: list[list[int]], num_experts: int) -> list[tuple[str, str]]:
    placement = placement_from_ranks([rows], num_experts=num_experts)
    return [(violation.rule, violation.text) for violation in violations(placement)]


def test_case_f23_an_unknown_expert_and_the_missing_one_are_both_told() -> None:
    unknown, missing = found([[0, 1], [2, 9]], 4)
    assert unknown[0] == "ids_are_known"
    assert unknown[1].startswith("unknown expert 9 in rank 1 slot 1")
    assert missing == ("every_expert_is_placed", "expert 3 is missing: no slot")


def test_case_f24_a_duplicate_on_a_rank() -> None:
    [(rule, text)] = found([[0, 1, 1], [2, 3, 4]], 5)
    assert rule == "replicas_are_on_different_ranks"
    assert text == "duplicate: expert 1 sits more than once on rank 0"


def test_case_f24_b_missing_experts() -> None:
    wrong = found([[0, 1, 2], [0, 1, 2]], 5)
    assert {rule for rule, _ in wrong} == {"every_expert_is_placed"}
    assert [text.split(" is")[0] for _, text in wrong] == ["expert 3", "expert 4"]


def test_case_f24_c_a_ragged_table() -> None:
    rows = [[[0, 1, 2], [3, 4, 0]], [[0, 1, 2], [3, 4]]]
    with pytest.raises(InvalidTable, match=r"ragged table: layer 1 has .* \[3, 2\]"):
        placement_from_ranks(rows, num_experts=5)


def test_case_f43_a_declared_empty_slot_is_no_expert_and_gets_no_token() -> None:
    rows = [[[0, 1, 2], [3, 4, 5], [6, 7, -1]]]
    placement = placement_from_ranks(rows, num_experts=8)
    assert not violations(placement)
    heat = np.full((1, 8), 9.0)
    slots = even_slot_load(heat, placement)
    assert slots.tolist() == [[9.0] * 8 + [0.0]]
    assert rank_load(slots, placement).tolist() == [[27.0, 27.0, 18.0]]


def test_several_empty_slots_on_a_rank_are_no_duplicates() -> None:
    assert not found([[0, 1], [-1, -1]], 2)


@given(placement=sound_placements)
def test_a_sound_placement_passes_every_rule(placement: Placement) -> None:
    before = placement.phy2log.copy()
    require_sound(placement)
    assert (placement.phy2log == before).all()


def test_an_unsound_placement_is_refused_with_all_that_is_wrong() -> None:
    placement = placement_from_ranks([[[0, 0], [9, 1]]], num_experts=3)
    with pytest.raises(InvalidPlacement) as refused:
        require_sound(placement)
    for part in ("unknown expert 9", "expert 2 is missing", "duplicate: expert 0"):
        assert part in str(refused.value)


def test_a_long_list_of_faults_is_cut_and_counted() -> None:
    placement = placement_from_ranks([[[0], [0]]], num_experts=31)
    with pytest.raises(InvalidPlacement, match="and 10 more; the whole placement is refused"):
        require_sound(placement)


def test_a_placement_for_another_deployment_is_refused_with_both_numbers() -> None:
    here = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)
    other = placement_from_ranks([[[0, 1, 2]], [[0, 1, 2]]], num_experts=3)
    with pytest.raises(MisfitPlacement) as refused:
        require_fit(other, here)
    for part in ("layers 2, expected 1", "experts 3, expected 4", "ranks 1, expected 2"):
        assert part in str(refused.value)
    require_fit(here, here)


def test_shared_experts_are_pinned() -> None:
    old = placement_from_ranks([[[0, 2], [1, 2]]], num_experts=2, num_shared=1)
    new = placement_from_ranks([[[0, 2], [2, 1]]], num_experts=2, num_shared=1)
    assert [violation.text.split(" holds")[0] for violation in shared_slots_stay(old, new)] == [
        "slot 2",
        "slot 3",
    ]
    assert not list(shared_slots_stay(old, old))


def test_an_expert_that_stays_on_a_rank_keeps_its_slot() -> None:
    old = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)
    moved = placement_from_ranks([[[1, 0], [2, 3]]], num_experts=4)
    swapped = placement_from_ranks([[[0, 2], [1, 3]]], num_experts=4)
    assert len(list(kept_experts_keep_their_slot(old, moved))) == 2
    assert not list(kept_experts_keep_their_slot(old, swapped))
