"""Every row of a dispatch table names a slot that holds the expert."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.shares import (
    Ownership,
    Shares,
    dispatch_violations,
    even_shares,
    num_rows,
    table_digest,
)
from tests.domain.sound import sound_placements
from tests.domain.test_placement_views import FLAT, FROM_FILE

EIGHT_OF_ONE = placement_from_ranks([[[0]] * 4 + [[1]] * 4], num_experts=2)
TWICE = placement_from_ranks(
    [[[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7]]], num_experts=8
)


@pytest.mark.parametrize(
    ("placement", "rank", "slots"),
    [
        (FLAT, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (FLAT, 1, [8, 9, 2, 3, 4, 5, 6, 7]),
        (FROM_FILE, 0, [2, 6, 1, 3, 7, 4, 5, 0]),
        (FROM_FILE, 1, [2, 6, 9, 3, 7, 4, 5, 8]),
        (EIGHT_OF_ONE, 7, [3, 7]),
        (TWICE, 0, [*range(8)]),
        (TWICE, 1, [*range(8, 16)]),
        (TWICE, 2, [*range(8)]),
        (TWICE, 3, [*range(8, 16)]),
    ],
)
def test_own_tokens_take_the_replica_of_their_rank(
    placement: Placement, rank: int, slots: list[int]
) -> None:
    table = even_shares(placement, Ownership.OWN).table_of(rank)
    assert table[0, :, 0].tolist() == slots
    assert table.shape[2] == 1


def test_replicated_tokens_spread_over_rows_evenly() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 2], [0, 1]]], num_experts=3)
    shares = even_shares(placement, Ownership.REPLICATED)
    assert shares.tables.shape == (1, 1, 3, 6)
    assert shares.table_of(2).tolist() == [
        [[0, 2, 4, 0, 2, 4], [1, 5, 1, 5, 1, 5], [3, 3, 3, 3, 3, 3]]
    ]


def test_replicated_tables_have_as_many_rows_whatever_is_placed() -> None:
    one = placement_from_ranks([[[e] for e in range(8)]], num_experts=8)
    many = placement_from_ranks([[list(range(8 - rank)) for rank in range(8)]], num_experts=8)
    tables = [even_shares(p, Ownership.REPLICATED).tables for p in (one, many)]
    assert [table.shape[3] for table in tables] == [num_rows(8)] * 2 == [12, 12]
    used = np.bincount(tables[1][0, 0, 0], minlength=36)
    assert used.max() - used[used > 0].min() <= 1


@given(placement=sound_placements, ownership=st.sampled_from(Ownership))
def test_every_row_of_every_rank_names_the_expert(
    placement: Placement, ownership: Ownership
) -> None:
    shares = even_shares(placement, ownership)
    layers = np.arange(placement.num_layers)[:, None, None]
    experts = np.arange(placement.num_experts)[None, :, None]
    for rank in range(placement.layout.num_ranks):
        table = shares.table_of(rank)
        assert (placement.phy2log[layers, table] == experts).all()
        assert not list(dispatch_violations(table, placement))


@given(placement=sound_placements, data=st.data())
def test_one_wrong_entry_is_found_where_it_is(placement: Placement, data: st.DataObject) -> None:
    table = even_shares(placement, Ownership.OWN).table_of(0).copy()
    layer = data.draw(st.integers(0, placement.num_layers - 1))
    expert = data.draw(st.integers(0, placement.num_experts - 1))
    right = {int(s) for s in np.flatnonzero(placement.phy2log[layer] == expert)}
    slots = range(-1, placement.layout.num_slots + 1)
    wrong = data.draw(st.sampled_from([s for s in slots if s not in right]))
    table[layer, expert, 0] = wrong
    [found] = dispatch_violations(table, placement)
    assert found.layer == layer
    assert found.text.startswith(f"row 0 of expert {expert} names slot {wrong}")


@pytest.mark.parametrize("shape", [(1, 7, 1), (2, 8, 1), (1, 8, 0)])
def test_a_table_of_another_shape_is_a_violation(shape: tuple[int, int, int]) -> None:
    table: IntArray = np.zeros(shape, dtype=np.int32)
    [found] = dispatch_violations(table, FLAT)
    assert f"shape {list(shape)}; expected [1, 8, rows]" in found.text


def test_an_expert_without_a_slot_leaves_a_row_that_is_found() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 1]]], num_experts=3)
    for ownership in Ownership:
        table = even_shares(placement, ownership).table_of(0)
        assert {
            found.text.split(" names")[0][-8:] for found in dispatch_violations(table, placement)
        } == {"expert 2"}


def test_replicated_tokens_have_one_table() -> None:
    tables: IntArray = np.zeros((2, 1, 2, 1), dtype=np.int32)
    with pytest.raises(InvalidTable, match="2 dispatch tables for replicated tokens"):
        Shares(tables, Ownership.REPLICATED)


def test_tables_of_the_wrong_rank_are_refused() -> None:
    tables: IntArray = np.zeros((1, 2, 1), dtype=np.int32)
    with pytest.raises(InvalidTable, match=r"shape \[1, 2, 1\]"):
        Shares(tables, Ownership.OWN)


def test_the_digest_of_a_table_changes_with_any_entry_and_its_shape() -> None:
    table = even_shares(FLAT, Ownership.OWN).table_of(0)
    other = table.copy()
    other[0, 0, 0] = 8
    digests = {table_digest(t) for t in (table, other, table.reshape(1, 4, 2))}
    assert len(digests) == 3
    assert table_digest(table.copy()) in digests
