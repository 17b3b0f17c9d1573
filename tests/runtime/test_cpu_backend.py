"""The CPU backend is the specification: exact, stable, and blind to what was never written."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.linears import DenseLinear
from moe_runtime.contracts.rows import PlainRows

BACKEND = CpuBackend()
NAN = float("nan")


def test_a_pair_without_a_row_counts_nothing_even_beside_nan() -> None:
    rows = torch.tensor([[NAN, NAN], [1.0, 2.0]])
    index = torch.tensor([[1, -1], [-1, -1]])
    weights = torch.tensor([[2.0, NAN], [0.5, 0.5]])
    assert BACKEND.weighted_sum(rows, index, weights).numpy().tolist() == [[2.0, 4.0], [0.0, 0.0]]


def test_without_any_row_the_sum_is_zero() -> None:
    none = torch.empty((0, 2))
    index = torch.full((3, 2), -1)
    assert (
        BACKEND.weighted_sum(none, index, torch.ones((3, 2))).numpy().tolist() == [[0.0, 0.0]] * 3
    )


def test_each_row_meets_the_matrix_of_its_group() -> None:
    weights = torch.stack([torch.eye(2) * n for n in (1, 2, 3)])
    counts = GroupCounts(torch.tensor([1, 0, 2]))
    out = BACKEND.grouped_linear(PlainRows(torch.ones((3, 2))), DenseLinear(weights), counts)
    assert out.numpy().tolist() == [[1.0, 1.0], [3.0, 3.0], [3.0, 3.0]]


@given(st.lists(st.integers(0, 4), max_size=20))
def test_rows_are_ordered_by_group_and_stay_in_order_within(groups: list[int]) -> None:
    order = BACKEND.order_by_group(torch.tensor(groups, dtype=torch.int64)).numpy().tolist()
    assert order == sorted(range(len(groups)), key=lambda row: groups[row])


def test_groups_without_rows_are_counted_too() -> None:
    assert BACKEND.count_groups(torch.tensor([3, 1, 3]), 5).counts_S.numpy().tolist() == [
        0,
        1,
        0,
        2,
        0,
    ]
    none = torch.empty(0, dtype=torch.int64)
    assert BACKEND.count_groups(none, 2).counts_S.numpy().tolist() == [0, 0]
