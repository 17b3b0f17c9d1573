"""Moves carry exactly what is missing, from who has it, by the shortest way."""

from random import Random

import numpy as np
import pytest
from hypothesis import given

from eplb_service.domain.errors import InvalidPlacement
from eplb_service.domain.moves import align, crosses_ranks, num_moves, transfers
from eplb_service.domain.placement import EMPTY, Placement, placement_from_ranks
from eplb_service.domain.rules import kept_experts_keep_their_slot, violations
from tests.planning.placements import GRID, pairs, random_placement


def one_layer(*ranks: list[int], num_experts: int) -> Placement:
    return placement_from_ranks([list(ranks)], num_experts=num_experts)


def test_the_receivers_of_the_upstream_example() -> None:
    old = one_layer([0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3], num_experts=8)
    new = one_layer([0, 1, 5], [3, 4, 5], [6, 7, 5], [1, 2, 5], num_experts=8)
    assert transfers(old, new).tolist() == [[0, 5, 5, 2], [0, 5, 5, 8], [0, 5, 5, 11]]


def test_orders_come_from_the_actual_map_not_from_a_plan_that_was_refused() -> None:
    actual = one_layer([0, 1], [2, 3], num_experts=4)
    refused = one_layer([0, 2], [1, 3], num_experts=4)
    wanted = one_layer([3, 1], [2, 0], num_experts=4)
    assert transfers(actual, align(actual, wanted)).tolist() == [[0, 3, 3, 0], [0, 0, 0, 3]]
    assert len(transfers(refused, wanted)) == 4


def test_a_cycle_of_three_ranks_is_three_transfers() -> None:
    moves = transfers(
        one_layer([0], [1], [2], num_experts=3), one_layer([1], [2], [0], num_experts=3)
    )
    assert moves.tolist() == [[0, 1, 1, 0], [0, 2, 2, 1], [0, 0, 0, 2]]


def test_a_node_that_holds_the_expert_is_not_sent_it_from_elsewhere() -> None:
    first = [[0], [1], [2], [3], [0], [4], [5], [6]]
    then = [[0], [0], [0], [3], [0], [0], [0], [6]]
    old = placement_from_ranks([[[*a, 9 + i] for i, a in enumerate(first)]], num_experts=20)
    new = placement_from_ranks([[[*a, 9 + i] for i, a in enumerate(then)]], num_experts=20)
    moves = transfers(old, new, nodes=["a"] * 4 + ["b"] * 4)
    ranks = old.layout.rank_of_slot()
    assert [(ranks[s], ranks[t]) for _, _, s, t in moves.tolist()] == [
        (0, 1), (0, 2), (4, 5), (4, 6),
    ]  # fmt: skip


def test_senders_take_turns() -> None:
    old = one_layer([0], [0], [1], [1], [1], num_experts=2)
    new = one_layer([0], [0], [0], [0], [0], num_experts=2)
    assert transfers(old, new)[:, 2].tolist() == [0, 1, 0]


def test_a_copy_on_the_own_rank_is_preferred_and_costs_no_wire() -> None:
    old = one_layer([0, 1], [1, 0], num_experts=2)
    new = one_layer([1, 0], [1, 0], num_experts=2)
    moves = transfers(old, new)
    assert moves.tolist() == [[0, 1, 1, 0], [0, 0, 0, 1]]
    assert not crosses_ranks(moves, old).any()


def test_an_expert_that_nobody_holds_cannot_be_sent() -> None:
    old = one_layer([0, 1], [1, 0], num_experts=3)
    with pytest.raises(InvalidPlacement, match="needs expert 2"):
        transfers(old, one_layer([0, 1], [1, 2], num_experts=3))


@pytest.mark.parametrize(
    ("old", "new", "aligned"),
    [
        ([[0, 1], [2, 3]], [[1, 0], [3, 2]], [[0, 1], [2, 3]]),
        ([[0, 1], [2, 3]], [[3, 1], [2, 0]], [[3, 1], [2, 0]]),
        ([[0, 1, EMPTY], [2, 3, 4]], [[EMPTY, 0, 1], [4, 2, 3]], [[0, 1, EMPTY], [2, 3, 4]]),
        ([[0, 1, 2], [3, 4, 5]], [[5, 0, 4], [3, 1, 2]], [[0, 5, 4], [3, 1, 2]]),
    ],
)
def test_an_expert_that_stays_keeps_its_slot(
    old: list[list[int]], new: list[list[int]], aligned: list[list[int]]
) -> None:
    got = align(one_layer(*old, num_experts=6), one_layer(*new, num_experts=6))
    assert got.phy2log.tolist() == [[e for rank in aligned for e in rank]]


@given(pairs())
def test_aligning_keeps_each_ranks_experts_and_undoes_itself(
    pair: tuple[Placement, Placement],
) -> None:
    old, new = pair
    aligned = align(old, new)
    assert not list(kept_experts_keep_their_slot(old, aligned))
    assert num_moves(old, aligned) <= num_moves(old, new)
    for rank in range(old.layout.num_ranks):
        own = old.layout.slots_of(rank)
        assert (np.sort(aligned.phy2log[:, own]) == np.sort(new.phy2log[:, own])).all()
    assert (align(aligned, old).phy2log == old.phy2log).all()


@pytest.mark.parametrize(("num_ranks", "num_layers", "slots", "num_experts"), GRID)
def test_moves_turn_any_placement_into_any_other(
    num_ranks: int, num_layers: int, slots: int, num_experts: int
) -> None:
    rng = Random(num_ranks * 1000 + num_experts)
    shape = {"num_layers": num_layers, "num_experts": num_experts}
    old, new = (
        random_placement(rng, slots_per_rank=[slots] * num_ranks, **shape) for _ in range(2)
    )
    assert not violations(old)
    after = old.phy2log.copy()
    for layer, expert, source, target in transfers(old, new).tolist():
        assert old.phy2log[layer, source] == expert
        after[layer, target] = expert
    assert (after[new.phy2log != EMPTY] == new.phy2log[new.phy2log != EMPTY]).all()
    assert not len(transfers(old, old))
