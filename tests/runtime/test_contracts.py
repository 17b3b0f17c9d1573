"""What stages hand over cannot be mistaken for something else."""

import pytest
import torch

from moe_runtime.contracts import errors
from moe_runtime.contracts.groups import GroupCounts, GroupOffsets
from moe_runtime.contracts.weights import DenseWeights


def test_offsets_and_counts_of_the_same_numbers_are_different_groups() -> None:
    numbers = torch.tensor([3, 3, 10, 12])
    as_offsets = GroupOffsets(numbers).to_counts().counts_S
    assert as_offsets.numpy().tolist() == [3, 0, 7, 2]
    assert as_offsets.sum() == 12
    assert GroupCounts(numbers).counts_S.sum() == 28


def test_group_lists_survive_the_way_there_and_back() -> None:
    counts = GroupCounts(torch.tensor([0, 5, 0, 2]))
    assert counts.to_offsets().to_counts().counts_S.numpy().tolist() == [0, 5, 0, 2]
    assert (
        GroupOffsets(torch.tensor([], dtype=torch.int64)).to_counts().counts_S.numpy().tolist()
        == []
    )


def test_weights_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(errors.ShapeMismatch, match="w2 has shape"):
        DenseWeights(torch.zeros(2, 8, 6), torch.zeros(2, 6, 8))


def test_every_error_has_a_code_of_its_own() -> None:
    named = [getattr(errors, name) for name in errors.__all__]
    kinds: list[type[errors.MoeError]] = [kind for kind in named if isinstance(kind, type)]
    assert len(kinds) > 1
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(issubclass(kind, errors.MoeError) for kind in kinds)
