"""Rounds keep every rank's room, are as few as can be, and spread the work over all who hold."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.moves import transfers
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.rounds import transfer_rounds


def moves_of(*edges: tuple[int, int]) -> IntArray:
    """Transfers between ranks of one slot each."""
    return np.array([(0, nth, a, b) for nth, (a, b) in enumerate(edges)], dtype=np.int32)


def busiest(moves: IntArray, layout: SlotLayout) -> int:
    ranks = layout.rank_of_slot()
    wire = [(a, b) for a, b in ranks[moves[:, 2:]].tolist() if a != b]
    counts = [Counter(edge[side] for edge in wire) for side in (0, 1)]
    return max((n for count in counts for n in count.values()), default=0)


@settings(max_examples=150)
@given(
    edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60),
    room=st.integers(1, 4),
)
def test_rounds_are_as_few_as_the_busiest_rank_needs_and_overfill_nobody(
    edges: list[tuple[int, int]], room: int
) -> None:
    layout = SlotLayout((1,) * 7)
    moves = moves_of(*edges).reshape(-1, 4)
    rounds = transfer_rounds(moves, layout, round_rows=room).tolist()
    for side in (0, 1):
        used = Counter(
            (edge[side], number)
            for edge, number in zip(edges, rounds, strict=True)
            if edge[0] != edge[1]
        )
        assert max(used.values(), default=0) <= room
    assert max(rounds, default=0) + 1 == max(1, -(-busiest(moves, layout) // room))
    assert transfer_rounds(moves, layout, round_rows=room).tolist() == rounds


def test_first_fit_would_need_a_round_more() -> None:
    moves = moves_of((0, 1), (2, 3), (4, 5), (0, 3), (2, 5), (4, 1), (0, 5), (2, 1), (4, 3))
    assert max(transfer_rounds(moves, SlotLayout((1,) * 6), round_rows=1).tolist()) == 2


def test_earlier_transfers_go_in_earlier_rounds_where_nothing_is_in_the_way() -> None:
    moves = moves_of((0, 1), (0, 2), (0, 3), (4, 5))
    assert transfer_rounds(moves, SlotLayout((1,) * 6), round_rows=1).tolist() == [0, 1, 2, 0]


def ranks_of(placement: Placement, moves: IntArray) -> list[tuple[int, int]]:
    return [tuple(pair) for pair in placement.layout.rank_of_slot()[moves[:, 2:]].tolist()]


def test_who_has_a_choice_goes_around_ranks_that_others_depend_on() -> None:
    old = placement_from_ranks([[[0, 1], [0, 2], [3, 4], [5, 6]]], num_experts=7)
    new = placement_from_ranks([[[0, 1], [0, 2], [3, 0], [5, 1]]], num_experts=7)
    assert ranks_of(old, transfers(old, new)) == [(1, 2), (0, 3)]


def test_a_matrix_of_distances_decides_who_is_near() -> None:
    old = placement_from_ranks([[[0], [0], [1], [0]]], num_experts=2)
    new = placement_from_ranks([[[0], [1], [0], [0]]], num_experts=2)
    distance = np.array([[0.0, 5, 9, 5], [5, 0, 4, 1], [9, 4, 0, 2], [5, 1, 2, 0]])
    assert ranks_of(old, transfers(old, new, distance=distance)) == [(2, 1), (3, 2)]
    with pytest.raises(InvalidTable, match=r"distances have shape \[2, 2\]; expected \[4, 4\]"):
        transfers(old, new, distance=distance[:2, :2])


def test_ranks_that_took_an_expert_in_one_wave_share_in_sending_it_in_the_next() -> None:
    one = placement_from_ranks([[[0, 1], [0, 2], [2, 3], [3, 1]]], num_experts=4)
    many = placement_from_ranks([[[0, 1], [0, 2], [0, 3], [0, 2]]], num_experts=4)
    ranks = one.layout.rank_of_slot()
    sent = [ranks[source] for _, expert, source, _ in transfers(one, many) if expert == 0]
    assert sorted(sent) == [0, 1]


def test_a_supernode_is_nearer_than_another() -> None:
    nodes = ("s/a", "s/b", "t/c", "t/d")
    old = placement_from_ranks([[[0, 1], [2, 3], [0, 2], [1, 3]]], num_experts=4)
    new = placement_from_ranks([[[0, 1], [0, 3], [0, 2], [1, 2]]], num_experts=4)
    ranks = old.layout.rank_of_slot()
    pairs = {(int(ranks[a]), int(ranks[b])) for _, _, a, b in transfers(old, new, nodes=nodes)}
    assert pairs == {(0, 1), (2, 3)}


def test_a_given_matrix_takes_the_place_of_nodes() -> None:
    old = placement_from_ranks([[[0, 1], [0, 2], [2, 1]]], num_experts=3)
    new = placement_from_ranks([[[0, 1], [0, 2], [0, 1]]], num_experts=3)
    far = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 2.0], [9.0, 2.0, 0.0]])
    [(_, _, source, _)] = transfers(old, new, nodes=("a", "b", "a"), distance=far).tolist()
    assert old.layout.rank_of_slot()[source] == 1
