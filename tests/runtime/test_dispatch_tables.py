"""A logical expert becomes a slot once, by the table of the rank that owns the token."""

import pytest
import torch

from moe_runtime.contracts.errors import BadTable, UnplacedExpert
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.contracts.stages import Routed
from moe_runtime.placement.maps import DispatchTables, SlotLayout, remap


def routed(experts_TK: list[list[int]]) -> Routed:
    ids_TK = torch.tensor(experts_TK)
    return Routed(torch.zeros((len(experts_TK), 2)), LogicalIds(ids_TK), torch.ones(ids_TK.shape))


def test_the_map_is_applied_exactly_once() -> None:
    tables = DispatchTables([[[2], [0], [3], [1]]], layout=SlotLayout((4,)))
    placed = remap(routed([[0], [1], [2], [3]]), tables.table(0), layer=0)
    assert placed.slots.ids_TK.reshape(-1).numpy().tolist() == [2, 0, 3, 1]  # twice: 3, 2, 1, 0


def test_tokens_spread_over_the_rows_of_a_table() -> None:
    table_EJ = torch.tensor([[0, 4], [1, 5]])
    placed = remap(routed([[0, 1]] * 4), table_EJ, layer=0, row_offset=1)
    assert placed.slots.ids_TK.numpy().tolist() == [[4, 5], [0, 1], [4, 5], [0, 1]]


def test_an_expert_without_a_slot_is_named() -> None:
    with pytest.raises(UnplacedExpert, match=r"layer 3: tokens chose experts \[1\]"):
        remap(routed([[0, 1], [1, 2]]), torch.tensor([[0], [-1], [2]]), layer=3)


def test_no_tokens_need_no_slots() -> None:
    none = Routed(
        torch.zeros((0, 2)), LogicalIds(torch.zeros((0, 3), dtype=torch.int64)), torch.zeros((0, 3))
    )
    placed = remap(none, torch.tensor([[-1], [-1]]), layer=0)
    assert placed.slots.ids_TK.shape == (0, 3)


def test_a_table_is_replaced_in_place() -> None:
    tables = DispatchTables([[[0], [1]], [[1], [0]]], layout=SlotLayout((2,)))
    seen = tables.table(1)
    tables.set(1, [[0], [1]])
    assert seen.numpy().tolist() == [[0], [1]]
    assert tables.snapshot().tolist() == [[[0], [1]], [[0], [1]]]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ([[0], [4]], r"experts \[1\] are sent to slots outside 0..3"),
        ([[0]], "shape"),
        ([[-2], [0]], "outside"),
    ],
)
def test_a_wrong_table_is_refused_and_the_old_one_kept(table: list[list[int]], told: str) -> None:
    tables = DispatchTables([[[0], [1]]], layout=SlotLayout((3, 1)))
    with pytest.raises(BadTable, match=told):
        tables.set(0, table)
    assert tables.table(0).numpy().tolist() == [[0], [1]]


def test_slots_are_numbered_rank_by_rank_when_ranks_differ() -> None:
    layout = SlotLayout((3, 0, 2))
    assert [layout.base(rank) for rank in range(3)] == [0, 3, 3]
    assert layout.bounds() == (0, 3, 3, 5)
    assert layout.num_slots == 5
