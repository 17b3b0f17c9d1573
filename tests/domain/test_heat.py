"""Load is folded to heat without losing a token, and balance has one definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.domain.heat import even_slot_load, fold_slots, imbalance, rank_load
from eplb_service.domain.placement import Placement, placement_from_ranks
from tests.domain.sound import sound_placements


def test_case_f65_folding_replicas_keeps_the_total() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3)
    heat = fold_slots(np.array([[30, 10, 50, 10]]), placement)
    assert heat.tolist() == [[80, 10, 10]]
    assert heat.sum() == 100


def test_case_f12_counts_are_read_as_counts_and_never_as_running_sums() -> None:
    placement = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)
    cumulative = np.array([[3, 3, 10, 12]])
    counts = np.diff(cumulative, axis=1, prepend=0)
    assert fold_slots(counts, placement).tolist() == [[3, 0, 7, 2]]
    assert fold_slots(cumulative, placement).sum() == 28


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_case_f11_large_counts_do_not_wrap(dtype: type[np.int32] | type[np.int64]) -> None:
    placement = placement_from_ranks([[[0], [0]]], num_experts=1)
    slots = np.array([[2_000_000_000, 2_000_000_000]], dtype=dtype).astype(np.int64)
    assert fold_slots(slots, placement).tolist() == [[4_000_000_000]]


def test_case_f11_imbalance_does_not_change_by_a_common_factor() -> None:
    load = np.array([[30.0, 10.0, 20.0]])
    assert imbalance(load * 1000).tolist() == imbalance(load).tolist()


def test_case_f48_imbalance_is_peak_over_mean_of_ranks_by_layer() -> None:
    assert imbalance(np.array([[30.0, 10.0], [10.0, 30.0]])).tolist() == [1.5, 1.5]


def test_a_layer_without_load_has_no_imbalance() -> None:
    assert np.isnan(imbalance(np.zeros((1, 4)))).all()


def test_empty_and_shared_slots_do_not_count() -> None:
    placement = placement_from_ranks([[[0, 2], [1, -1]]], num_experts=2, num_shared=1)
    slots = np.array([[5, 70, 7, 90]])
    assert fold_slots(slots, placement).tolist() == [[5, 7]]
    assert rank_load(slots, placement).tolist() == [[5.0, 7.0]]


@given(placement=sound_placements, seed=st.integers(0, 2**32 - 1))
def test_an_even_split_folds_back_to_the_heat_it_came_from(placement: Placement, seed: int) -> None:
    rng = np.random.default_rng(seed)
    heat = rng.integers(0, 1000, (placement.num_layers, placement.num_experts)).astype(np.float64)
    slots = even_slot_load(heat, placement)
    assert np.isclose(rank_load(slots, placement).sum(axis=1), heat.sum(axis=1)).all()
    scaled = np.rint(slots * 60).astype(np.int64)
    assert (fold_slots(scaled, placement) == np.rint(heat * 60)).all()
