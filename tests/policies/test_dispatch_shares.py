"""Whole sources and whole rows come close to the best split, and stay near where they can."""

import time
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidSettings, InvalidTable
from eplb_service.domain.heat import imbalance
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement, placement_from_ranks
from eplb_service.domain.shares import Ownership, dispatch_violations, even_shares
from eplb_service.policies.lpt import place
from eplb_service.policies.shares import load_under, shares_by_row, shares_by_source
from eplb_service.policies.split import exact_split, split_imbalance
from tests.planning.placements import random_placement


def by_source(heat: FloatArray, num_ranks: int, *, seed: int = 0) -> FloatArray:
    """Tokens [L, E] as ranks of unequal weight would send them."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(heat.astype(np.int64), rng.dirichlet(np.full(num_ranks, 50.0)))
    return np.moveaxis(drawn, -1, 0).astype(np.float64)


def packed(*, num_layers: int, num_experts: int, slots: int, num_ranks: int) -> Placement:
    heat = np.random.default_rng(1).lognormal(0, 0.8, (num_layers, num_experts))
    rows = [[e for r in place(own, [slots] * num_ranks) for e in r] for own in heat]
    layout = SlotLayout((slots,) * num_ranks)
    return Placement(np.array(rows, dtype=np.int32), num_experts, layout)


@st.composite
def sent(draw: st.DrawFn) -> tuple[Placement, FloatArray]:
    slots = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    num_experts = draw(st.integers(1, sum(slots)))
    rng = Random(draw(st.integers(0, 2**32)))
    placement = random_placement(rng, num_layers=2, num_experts=num_experts, slots_per_rank=slots)
    tokens = [
        [[rng.choice([0, 0, 3, 40, 2**62]) for _ in range(num_experts)] for _ in range(2)]
        for _ in slots
    ]
    return placement, np.array(tokens, dtype=np.float64)


@settings(max_examples=50)
@given(given_=sent())
def test_tables_name_slots_that_hold_the_expert(given_: tuple[Placement, FloatArray]) -> None:
    placement, tokens = given_
    own = shares_by_source(tokens, placement)
    for rank in range(placement.layout.num_ranks):
        assert not list(dispatch_violations(own.table_of(rank), placement))
    rows = shares_by_row(tokens.sum(axis=0), placement)
    assert rows.ownership is Ownership.REPLICATED
    assert not list(dispatch_violations(rows.table_of(0), placement))
    assert (shares_by_source(tokens, placement).tables == own.tables).all()
    load = load_under(own, tokens, placement)
    assert load.sum() == pytest.approx(tokens.sum())


def test_whole_sources_lose_almost_nothing_of_the_best_split() -> None:
    placement = packed(num_layers=8, num_experts=64, slots=10, num_ranks=8)
    heat = 1e4 * np.random.default_rng(2).lognormal(0, 0.7, (8, 64))
    tokens = by_source(heat, 8)
    heat = tokens.sum(axis=0)
    best = split_imbalance(heat, placement, exact_split(heat, placement))
    whole = imbalance(load_under(shares_by_source(tokens, placement), tokens, placement))
    even = imbalance(load_under(even_shares(placement, Ownership.OWN), tokens, placement))
    assert (whole >= best - 1e-9).all()
    assert whole.mean() <= best.mean() + 0.005
    assert whole.mean() < even.mean() - 0.02


def test_what_whole_sources_of_one_expert_leave_over_those_of_the_next_make_up() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 1]]], num_experts=2)
    tokens = np.array([[[30.0, 20.0]], [[10.0, 0.0]]])
    for order in ([0, 1], [1, 0]):
        own = shares_by_source(tokens[:, :, order], placement)
        assert load_under(own, tokens[:, :, order], placement).tolist() == [[30.0, 30.0]]


def test_a_source_uses_its_own_replica_and_then_its_nodes() -> None:
    placement = placement_from_ranks([[[0, 1], [2, 3], [0, 4], [5, 6]]], num_experts=7)
    tokens = np.full((4, 1, 7), 10.0)
    shares = shares_by_source(tokens, placement, nodes=("a", "a", "b", "b"))
    assert shares.tables[:, 0, 0, 0].tolist() == [0, 0, 4, 4]
    apart = shares_by_source(tokens, placement, nodes=("a", "b", "b", "a"))
    assert apart.tables[:, 0, 0, 0].tolist() == [0, 4, 4, 0]


def test_nearness_gives_way_to_balance() -> None:
    placement = placement_from_ranks([[[0, 1], [2, 3], [0, 4], [5, 6]]], num_experts=7)
    tokens = np.full((4, 1, 7), 10.0)
    tokens[:2, 0, 0] = 100
    tokens[2:, 0, 0] = 0
    shares = shares_by_source(tokens, placement, nodes=("a", "a", "b", "b"))
    assert sorted(shares.tables[:2, 0, 0, 0].tolist()) == [0, 4]


def test_a_high_price_keeps_tokens_near_at_the_cost_of_balance() -> None:
    rng = np.random.default_rng(5)
    placement = packed(num_layers=6, num_experts=24, slots=4, num_ranks=8)
    tokens = rng.integers(0, 200, (8, 6, 24)).astype(np.float64)
    nodes = tuple("aaaabbbb")

    def measured(price: float) -> tuple[float, float]:
        shares = shares_by_source(tokens, placement, nodes=nodes, price=price)
        there = placement.layout.rank_of_slot()[shares.tables[..., 0]] // 4
        is_near = there == (np.arange(8) // 4)[:, None, None]
        load = load_under(shares, tokens, placement)
        return float((tokens * is_near).sum()), float(imbalance(load).mean())

    cheap, dear = measured(0.0), measured(1.0)
    assert dear[0] >= cheap[0]
    assert dear[1] >= cheap[1]


def test_experts_without_tokens_keep_even_shares() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 2], [1, 3]]], num_experts=4)
    tokens = np.zeros((3, 1, 4))
    tokens[:, 0, 0] = 30
    even = even_shares(placement, Ownership.OWN).tables
    assert (shares_by_source(tokens, placement).tables[:, :, 1:] == even[:, :, 1:]).all()


def test_rows_follow_the_best_split_and_are_dealt_in_turn() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 2], [3, 4]]], num_experts=5)
    heat = np.array([[60.0, 35.0, 5.0, 25.0, 25.0]])
    table = shares_by_row(heat, placement, rows=4).tables[0, 0]
    assert table[0].tolist() == [2, 0, 2, 2]
    assert table[1].tolist() == [1, 1, 1, 1]
    finer = shares_by_row(heat, placement, rows=120).tables[0, 0, 0]
    assert (finer == 2).sum() == 90
    assert shares_by_row(heat, placement).tables.shape == (1, 1, 5, 6)


def test_what_makes_no_sense_is_refused() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3)
    tokens = np.ones((2, 1, 3))
    with pytest.raises(InvalidTable, match=r"tokens by source have shape \[0, 1, 3\]"):
        shares_by_source(np.ones((0, 1, 3)), placement)
    with pytest.raises(InvalidTable, match="1 nodes named; expected 2"):
        shares_by_source(tokens, placement, nodes=("a",))
    with pytest.raises(InvalidSettings, match="a price of nan"):
        shares_by_source(tokens, placement, price=float("nan"))
    with pytest.raises(InvalidSettings, match="a dispatch table of 0 rows"):
        shares_by_row(tokens[0], placement, rows=0)
    tokens[1, 0, 2] = -1
    with pytest.raises(InvalidTable, match="has heat -1"):
        shares_by_source(tokens, placement)


@pytest.mark.slow
def test_tables_of_a_large_model_are_drawn_in_a_moment() -> None:
    layout = SlotLayout((9,) * 32)
    placement = initial_placement(num_layers=58, num_experts=256, layout=layout)
    heat = 1000 * np.random.default_rng(0).lognormal(0, 0.8, (58, 256))
    tokens = by_source(heat, 32)
    start = time.process_time()
    shares_by_source(tokens, placement)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("exponent", [-1040, -1020, 1000])
def test_counts_of_any_size_are_divided_alike(exponent: int) -> None:
    placement = packed(num_layers=2, num_experts=8, slots=4, num_ranks=4)
    tokens = np.random.default_rng(1).integers(0, 90, (4, 2, 8)).astype(np.float64)
    scaled = np.ldexp(tokens, exponent)
    drawn = shares_by_source(scaled, placement, nodes=())
    assert (drawn.tables == shares_by_source(tokens, placement, nodes=()).tables).all()
    heat, counted = scaled.sum(axis=0), tokens.sum(axis=0)
    found = split_imbalance(heat, placement, exact_split(heat, placement))
    want = split_imbalance(counted, placement, exact_split(counted, placement))
    assert found == pytest.approx(want)


def test_the_least_heat_that_there_is_counts_as_load() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 2]]], num_experts=3)
    heat = np.array([[5e-324, 0.0, 0.0]])
    assert split_imbalance(heat, placement, exact_split(heat, placement)) == pytest.approx(1.0)
