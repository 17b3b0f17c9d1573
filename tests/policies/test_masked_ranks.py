"""Ranks that are drained or dead hold nothing afterwards, whatever policy draws the plan."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidRequest, InvalidSettings
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.moves import num_moves
from eplb_service.domain.placement import EMPTY, Placement, initial_placement, placement_from_ranks
from eplb_service.domain.rules import (
    kept_experts_keep_their_slot,
    require_emptied,
    shared_slots_stay,
    violations,
)
from eplb_service.policies.bounds import Bounds, Topology
from eplb_service.policies.budgeting import incoming
from eplb_service.policies.catalog import POLICIES, Listed, policy_named, suited
from eplb_service.policies.request import PolicyRequest, even_split
from eplb_service.policies.terms import Terms

BY_NODE = {"hierarchical", "greedy_by_node"}
every_policy = pytest.mark.parametrize("listed", POLICIES, ids=lambda listed: listed.name)


def request_of(
    placement: Placement, heat: object, bounds: Bounds, *, max_moves: int | None = None
) -> PolicyRequest:
    num_ranks = placement.layout.num_ranks
    return PolicyRequest(
        np.array(heat, dtype=np.float64),
        placement,
        even_split(num_ranks),
        tuple(range(placement.num_layers)),
        Topology(tuple("ab"[rank * 2 // num_ranks] for rank in range(num_ranks)), 2),
        max_moves=max_moves,
        bounds=bounds,
        terms=Terms(speeds=tuple(1.0 + rank for rank in range(num_ranks))),
    )


def drawn_by(listed: Listed, request: PolicyRequest) -> Placement:
    """Draw as the controller does: a policy that does not fit gives way."""
    return suited(listed.name, request)[0].draw(request)


@st.composite
def requests(draw: st.DrawFn) -> PolicyRequest:
    """Deployments of equal ranks with room enough for those that are masked."""
    num_ranks = draw(st.integers(2, 6))
    num_masked = draw(st.integers(1, num_ranks - 1))
    slots = draw(st.integers(1, 5))
    num_experts = draw(st.integers(slots, slots * (num_ranks - num_masked)))
    flat = initial_placement(
        num_layers=2, num_experts=num_experts, layout=SlotLayout((slots,) * num_ranks)
    )
    rng = Random(draw(st.integers(0, 2**32)))
    masked = tuple(sorted(rng.sample(range(num_ranks), num_masked)))
    kinds = [
        [0] * num_experts,
        [1000] + [1] * (num_experts - 1),
        [rng.randint(0, 99) for _ in range(num_experts)],
    ]
    heat = [rng.choice(kinds) for _ in range(2)]
    return request_of(flat, heat, Bounds(masked))


@every_policy
@settings(max_examples=15)
@given(request=requests())
def test_a_masked_rank_is_empty_and_every_expert_has_a_slot(
    listed: Listed, request: PolicyRequest
) -> None:
    drawn = drawn_by(listed, request)
    assert not violations(drawn)
    assert not list(kept_experts_keep_their_slot(request.placement, drawn))
    require_emptied(drawn, request.layers, request.bounds.masked)
    assert (drawn_by(listed, request).phy2log == drawn.phy2log).all()


@every_policy
@settings(max_examples=10)
@given(request=requests())
def test_a_rank_that_is_back_is_filled_again(listed: Listed, request: PolicyRequest) -> None:
    emptied = policy_named("static").draw(request)
    masked = request.bounds.masked
    back = request_of(emptied, request.heat, Bounds(masked[1:], masked[:1]))
    drawn = drawn_by(listed, back)
    assert not violations(drawn)
    own = drawn.phy2log[:, drawn.layout.slots_of(masked[0])]
    assert (own != EMPTY).all()
    require_emptied(drawn, back.layers, masked[1:])


@settings(max_examples=30)
@given(request=requests())
def test_emptying_alone_moves_only_what_has_no_other_replica(request: PolicyRequest) -> None:
    drawn = policy_named("static").draw(request)
    kept = request.placement.phy2log.copy()
    kept[:, np.isin(request.placement.layout.rank_of_slot(), request.bounds.masked)] = EMPTY
    lost = sum(request.placement.num_experts - len(set(row) - {EMPTY}) for row in kept.tolist())
    assert num_moves(request.placement, drawn) == lost


@every_policy
def test_experts_without_room_are_counted(listed: Listed) -> None:
    flat = initial_placement(num_layers=3, num_experts=6, layout=SlotLayout((2, 2, 2, 2)))
    says = r"without ranks \[0, 3\] layer 0 has 4 slots for 6 experts: 2 experts are without room"
    with pytest.raises(InvalidRequest, match=says):
        drawn_by(listed, request_of(flat, np.ones((3, 6)), Bounds((0, 3))))


def test_emptying_is_done_whatever_the_budget_and_nothing_else_beyond_it() -> None:
    flat = initial_placement(num_layers=3, num_experts=6, layout=SlotLayout((2, 2, 2, 2)))
    heat = np.arange(18.0).reshape(3, 6)
    request = request_of(flat, heat, Bounds((1,)), max_moves=5)
    for name in ("static", "incremental", "connected", "random"):
        drawn = policy_named(name).draw(request)
        assert num_moves(flat, drawn) == 6
        require_emptied(drawn, request.layers, (1,))


def test_filling_keeps_to_the_budget() -> None:
    flat = initial_placement(num_layers=3, num_experts=6, layout=SlotLayout((2, 2, 2, 2)))
    emptied = policy_named("static").draw(request_of(flat, np.ones((3, 6)), Bounds((1,))))
    request = request_of(emptied, np.ones((3, 6)), Bounds((), (1,)), max_moves=5)
    assert num_moves(emptied, policy_named("static").draw(request)) == 0


def test_what_has_no_other_room_goes_to_a_rank_that_is_back_whatever_the_budget() -> None:
    emptied = placement_from_ranks([[[0], [1], [EMPTY]]], num_experts=2)
    request = request_of(emptied, np.ones((1, 2)), Bounds((0,), (2,)), max_moves=0)
    assert policy_named("static").draw(request).phy2log.tolist() == [[EMPTY, 1, 0]]


def test_shared_experts_of_a_masked_rank_stay() -> None:
    placement = placement_from_ranks(
        [[[0, 1, 4], [2, 3, 4], [0, 2, 4]]], num_experts=4, num_shared=1
    )
    for listed in POLICIES:
        drawn = drawn_by(listed, request_of(placement, [[10, 200, 30, 40]], Bounds((2,))))
        assert not list(shared_slots_stay(placement, drawn))
        assert drawn.phy2log[0, 6:].tolist() == [EMPTY, EMPTY, 4]


def test_layers_that_are_not_asked_for_keep_what_they_have() -> None:
    flat = initial_placement(num_layers=2, num_experts=6, layout=SlotLayout((3, 3, 3)))
    for listed in POLICIES:
        whole = request_of(flat, np.ones((2, 6)), Bounds((0,)))
        request = PolicyRequest(
            whole.heat, flat, whole.split, (1,), whole.topology, bounds=Bounds((0,))
        )
        drawn = drawn_by(listed, request)
        assert (drawn.phy2log[0] == flat.phy2log[0]).all()
        assert (drawn.phy2log[1, :3] == EMPTY).all()


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        (Bounds((3,)), "rank 3 does not exist; there are 0 to 2"),
        (Bounds((-1,)), "rank -1 does not exist"),
        (Bounds((1, 0)), r"ranks \[1, 0\]; expected each once, ascending"),
        (Bounds(per_rank=-1), "a budget of -1 moves per rank"),
        (Bounds((1,), (1,)), r"ranks \[1\] are masked and cannot be filled too"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds: Bounds, says: str) -> None:
    flat = initial_placement(num_layers=1, num_experts=3, layout=SlotLayout((2, 2, 2)))
    with pytest.raises((InvalidRequest, InvalidSettings), match=says):
        request_of(flat, np.ones((1, 3)), bounds)


def test_one_rank_must_stay() -> None:
    flat = initial_placement(num_layers=1, num_experts=2, layout=SlotLayout((2, 2)))
    with pytest.raises(InvalidRequest, match="all 2 ranks are masked; one must stay"):
        policy_named("packing").draw(request_of(flat, np.ones((1, 2)), Bounds((0, 1))))


@every_policy
@settings(max_examples=10)
@given(request=requests(), per_layer=st.integers(0, 4), per_rank=st.integers(0, 4))
def test_budgets_of_layers_and_ranks_are_kept(
    listed: Listed, request: PolicyRequest, per_layer: int, per_rank: int
) -> None:
    bounded = replace(request, bounds=Bounds(per_layer=per_layer, per_rank=per_rank))
    drawn = drawn_by(listed, bounded)
    given = incoming(request.placement, drawn)
    assert given.sum(axis=1).max() <= per_layer
    assert given.sum(axis=0).max() <= per_rank
    assert not violations(drawn)


def test_a_layer_beyond_its_budget_is_drawn_with_what_it_may_take() -> None:
    flat = initial_placement(num_layers=1, num_experts=16, layout=SlotLayout((5,) * 4))
    heat = [[2.0 ** (n % 9) for n in range(16)]]
    free = policy_named("incremental").draw(request_of(flat, heat, Bounds()))
    bounded = policy_named("incremental").draw(request_of(flat, heat, Bounds(per_layer=2)))
    assert num_moves(flat, free) > 2
    assert num_moves(flat, bounded) == 2
