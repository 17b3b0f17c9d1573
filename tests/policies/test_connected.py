"""A connected plan is made for shares: it joins the ranks, and stays when shares are enough."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb_service.domain.ids import FloatArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement
from eplb_service.domain.rules import violations
from eplb_service.policies.connected import connected
from eplb_service.policies.kernels.library import packed
from eplb_service.policies.replicas import num_components
from eplb_service.policies.request import PolicyRequest, even_split
from eplb_service.policies.split import exact_split, split_imbalance
from tests.planning.placements import random_placement


def request_of(
    placement: Placement, heat: FloatArray, *, max_moves: int | None = None
) -> PolicyRequest:
    return PolicyRequest(
        heat=heat,
        placement=placement,
        split=even_split(placement.layout.num_ranks),
        layers=tuple(range(placement.num_layers)),
        max_moves=max_moves,
    )


def best(heat: FloatArray, placement: Placement) -> FloatArray:
    return split_imbalance(heat, placement, exact_split(heat, placement))


def skewed(num_layers: int, num_experts: int, *, seed: int = 0) -> FloatArray:
    return 1e4 * np.random.default_rng(seed).lognormal(0, 0.8, (num_layers, num_experts))


def joined(heat: FloatArray, layout: SlotLayout) -> Placement:
    sizes = np.tile(np.array(layout.slots_per_rank), (len(heat), 1))
    return Placement(packed(sizes, heat, is_joined=True).astype(np.int32), heat.shape[1], layout)


@pytest.mark.parametrize(
    ("num_experts", "slots", "num_ranks"),
    [(64, 9, 8), (64, 10, 8), (57, 8, 8), (10, 4, 4), (29, 4, 10), (128, 10, 16)],
)
def test_one_spare_slot_per_rank_less_one_joins_all_ranks(
    num_experts: int, slots: int, num_ranks: int
) -> None:
    layout = SlotLayout((slots,) * num_ranks)
    flat = initial_placement(num_layers=6, num_experts=num_experts, layout=layout)
    heat = skewed(6, num_experts)
    drawn = joined(heat, layout)
    assert layout.num_slots - num_experts >= num_ranks - 1
    assert not violations(drawn)
    assert (num_components(drawn) == 1).all()
    assert best(heat, drawn).mean() < best(heat, flat).mean()


def test_with_fewer_spare_slots_as_many_ranks_are_joined_as_can_be() -> None:
    heat = skewed(5, 61)
    drawn = joined(heat, SlotLayout((8,) * 8))
    assert (num_components(drawn) == 8 - 3).all()


def test_a_connected_layer_is_repaired_with_a_few_moves() -> None:
    layout = SlotLayout((9,) * 8)
    flat = initial_placement(num_layers=6, num_experts=64, layout=layout)
    heat = skewed(6, 64)
    settled = connected(request_of(flat, heat))
    changed = heat * np.random.default_rng(4).lognormal(0, 0.35, heat.shape)
    assert best(changed, settled).max() > 1.03
    repaired = connected(request_of(settled, changed))
    assert best(changed, repaired).max() <= 1.02
    assert 0 < (repaired.phy2log != settled.phy2log).sum() <= 40
    assert not violations(repaired)
    again = connected(request_of(repaired, changed))
    assert (again.phy2log == repaired.phy2log).all()


def test_what_shares_can_level_is_left_alone() -> None:
    layout = SlotLayout((9,) * 8)
    flat = initial_placement(num_layers=6, num_experts=64, layout=layout)
    heat = skewed(6, 64)
    settled = connected(request_of(flat, heat))
    assert (best(heat, settled) <= 1.01).all()
    noisy = heat * np.random.default_rng(1).uniform(0.97, 1.03, heat.shape)
    kept = best(noisy, settled) <= 1.01
    assert kept.any()
    again = connected(request_of(settled, noisy))
    assert (again.phy2log[kept] == settled.phy2log[kept]).all()


def test_the_budget_packs_the_worst_layer_and_repairs_with_what_is_left() -> None:
    layout = SlotLayout((9,) * 8)
    flat = initial_placement(num_layers=2, num_experts=64, layout=layout)
    heat = skewed(2, 64)
    heat[1, :9] *= 5
    drawn = connected(request_of(flat, heat, max_moves=75))
    changed = (drawn.phy2log != flat.phy2log).sum(axis=1).tolist()
    assert changed[1] > 50
    assert changed[0] <= 75 - changed[1]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), slots=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_no_layer_gets_worse_under_its_best_split(seed: int, slots: list[int]) -> None:
    rng = Random(seed)
    num_experts = rng.randint(1, sum(slots))
    placement = random_placement(rng, num_layers=3, num_experts=num_experts, slots_per_rank=slots)
    heat = np.array([[rng.choice([0, 1, 9, 400]) for _ in range(num_experts)] for _ in range(3)])
    heat = heat.astype(np.float64)
    drawn = connected(request_of(placement, heat))
    assert not violations(drawn)
    before, after = np.nan_to_num(best(heat, placement)), np.nan_to_num(best(heat, drawn))
    assert (after <= before + 1e-6).all()
    silent = heat.sum(axis=1) == 0
    assert (drawn.phy2log[silent] == placement.phy2log[silent]).all()


def farthest(placement: Placement, layer: int) -> int:
    """Experts on the longest of all shortest chains from one rank to another."""
    ranks = placement.layout.rank_of_slot()
    row = placement.phy2log[layer]
    hosts = [set(ranks[row == expert].tolist()) for expert in range(placement.num_experts)]
    near = {rank: [own for own in hosts if rank in own] for rank in ranks.tolist()}
    longest = 0
    for start in near:
        reached, edge, steps = {start}, {start}, 0
        while edge:
            edge = {r for at in edge for own in near[at] for r in own} - reached
            reached |= edge
            steps += bool(edge)
        assert len(reached) == placement.layout.num_ranks
        longest = max(longest, steps)
    return longest


def test_chains_of_ranks_are_short() -> None:
    layout = SlotLayout((6,) * 64)
    drawn = joined(skewed(6, 320), layout)
    assert max(farthest(drawn, layer) for layer in range(6)) <= 14


def test_a_joined_layer_stays_level_when_its_load_drifts() -> None:
    layout = SlotLayout((5,) * 64)
    heat = skewed(24, 256, seed=7)
    drawn = joined(heat, layout)
    changed = heat * np.random.default_rng(8).lognormal(0, 0.15, heat.shape)
    assert best(changed, drawn).mean() <= 1.03
