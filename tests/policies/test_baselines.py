"""The baselines do what the published balancers do, but for experts twice on one rank.

Expected layouts are what DeepSeek's balancer returns for these loads, as pinned by the tests of
vLLM and TensorRT-LLM; where it puts an expert twice on a rank, only its counts are expected.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement, placement_from_ranks
from eplb_service.domain.rules import violations
from eplb_service.policies.bounds import Topology
from eplb_service.policies.catalog import policy_named, suited
from eplb_service.policies.lpt import grant_replicas, place
from eplb_service.policies.request import PolicyRequest, even_split, predicted_load

UPSTREAM = (
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
)


def drawn(
    policy: str,
    heat: Sequence[Sequence[float]],
    placement: Placement,
    *,
    nodes: int = 1,
    groups: int = 1,
) -> Placement:
    num_ranks = placement.layout.num_ranks
    names = tuple(f"n{rank * nodes // num_ranks}" for rank in range(num_ranks))
    layers = tuple(range(placement.num_layers))
    tokens = np.array(heat, dtype=np.float64)
    topology = Topology(names, num_groups=groups)
    request = PolicyRequest(tokens, placement, even_split(num_ranks), layers, topology)
    return policy_named(policy).draw(request)


def sets_of(placement: Placement, layer: int = 0) -> list[set[int]]:
    layout = placement.layout
    row = placement.phy2log[layer]
    return [set(row[layout.slots_of(rank)].tolist()) for rank in range(layout.num_ranks)]


def pairs_of(flat: Sequence[int], size: int) -> list[set[int]]:
    return [set(flat[at : at + size]) for at in range(0, len(flat), size)]


def test_groups_go_to_nodes_as_deepseek_packs_them() -> None:
    flat = initial_placement(num_layers=2, num_experts=12, layout=SlotLayout((2,) * 8))
    got = drawn("greedy_by_node", UPSTREAM, flat, nodes=2, groups=4)
    expected = (
        [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
        [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
    )
    assert got.replica_count().tolist() == [
        [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1],
        [1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1],
    ]
    assert [sets_of(got, layer) for layer in (0, 1)] == [pairs_of(row, 2) for row in expected]
    load = predicted_load(np.array(UPSTREAM, dtype=np.float64), got, even_split(8))
    assert (load.mean(axis=1) / load.max(axis=1)).round(3).tolist() == [0.828, 0.805]


@pytest.mark.parametrize(
    ("heat", "sizes", "layout"),
    [
        ([10, 20, 30, 40], [4], [3, 2, 1, 0]),
        ([10, 20, 30, 40, 50, 60], [2, 2, 2, 2], [3, 0, 2, 4, 5, 4, 5, 1]),
        ([1] * 4, [2, 2], [0, 2, 1, 3]),
    ],
)
def test_longest_first_fills_slots_in_the_order_of_deepseek(
    heat: list[float], sizes: list[int], layout: list[int]
) -> None:
    packed = place(np.array(heat, dtype=np.float64), sizes)
    assert [expert for held in packed for expert in held] == layout


def test_where_deepseek_doubles_an_expert_on_a_rank_the_counts_agree_and_no_rank_does() -> None:
    packed = place(np.array([1000.0, 1, 1, 1]), [3, 3])
    assert sorted(len(set(held)) for held in packed) == [3, 3]
    assert sum(0 in held for held in packed) == 2  # DeepSeek has three, two of them on one rank


@pytest.mark.parametrize(
    ("heat", "num_slots", "max_replicas", "granted"),
    [
        ([1, 2, 3, 4], 4, 2, [1, 1, 1, 1]),
        ([0, 0, 0, 0], 6, 2, [2, 2, 1, 1]),
        ([1, 4, 2, 1], 8, 8, [1, 4, 2, 1]),
        ([10, 5, 2, 15, 8], 9, 3, [2, 1, 1, 3, 2]),
        ([0, 10, 0], 4, 2, [1, 2, 1]),
    ],
)
def test_replicas_are_granted_as_tensorrt_llm_grants_them(
    heat: list[float], num_slots: int, max_replicas: int, granted: list[int]
) -> None:
    assert grant_replicas(heat, num_slots=num_slots, max_replicas=max_replicas) == granted


@pytest.mark.parametrize(
    ("heat", "sizes", "gap"),
    [
        ([1, 1, 1, 1], [2, 2], 0.001),
        ([1, 3, 2, 1], [3, 3], 0.01),
        ([1, 100, 10], [2, 2], 9.0),
        ([2, 3, 4, 5, 6, 7], [3, 3], 1.0),
    ],
)
def test_packing_leaves_gaps_no_larger_than_tensorrt_llm(
    heat: list[float], sizes: list[int], gap: float
) -> None:
    tokens = np.array(heat, dtype=np.float64)
    ranks = place(tokens, sizes)
    load = predicted_load(
        tokens[None], placement_from_ranks([ranks], num_experts=len(heat)), even_split(len(sizes))
    )
    assert load.max() - load.min() <= gap + 1e-9


def test_packing_by_node_that_does_not_fit_is_noticed() -> None:
    flat = initial_placement(num_layers=1, num_experts=12, layout=SlotLayout((2,) * 8))
    with pytest.raises(InvalidSettings, match="1 nodes and 1 expert groups"):
        drawn("greedy_by_node", UPSTREAM[:1], flat)
    request = PolicyRequest(np.ones((1, 12)), flat, even_split(8), (0,))
    listed, warning = suited("greedy_by_node", request)
    assert listed.name == "greedy"
    assert "greedy is used instead of greedy_by_node" in warning


def skewed(num_layers: int) -> list[list[float]]:
    rng = np.random.default_rng(42)
    return (rng.random((num_layers, 256)) ** 10 * 999 + 1).round().tolist()


def test_swift_keeps_originals_and_moves_a_fraction_of_what_packing_moves() -> None:
    layout = SlotLayout((9,) * 32)
    flat = initial_placement(num_layers=3, num_experts=256, layout=layout)
    heat = skewed(3)
    got, packed = drawn("swift", heat, flat), drawn("greedy", heat, flat)
    assert not violations(got)
    moves = [(new.phy2log != flat.phy2log).sum() for new in (got, packed)]
    assert moves[0] < 0.4 * moves[1]
    before, after = (
        predicted_load(np.array(heat), p, even_split(32)).max(axis=1) for p in (flat, got)
    )
    assert (after < 0.6 * before).all()


def test_swift_looks_at_each_layer_by_itself() -> None:
    flat = initial_placement(num_layers=2, num_experts=256, layout=SlotLayout((9,) * 32))
    heat = np.array(skewed(1) * 2)
    heat[1] *= 1000
    got = drawn("swift", heat.tolist(), flat)
    assert (got.phy2log[0] == got.phy2log[1]).all()
