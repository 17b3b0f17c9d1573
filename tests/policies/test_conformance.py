"""What every policy owes: sound, repeatable, and nothing touched but routed slots."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidSettings, UnknownPolicy
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.moves import num_moves
from eplb_service.domain.placement import (
    EMPTY,
    Placement,
    initial_placement,
    placement_from_ranks,
)
from eplb_service.domain.rules import kept_experts_keep_their_slot, shared_slots_stay, violations
from eplb_service.policies.bounds import Topology
from eplb_service.policies.catalog import POLICIES, Listed, policy_named, suited, unjoined
from eplb_service.policies.lpt import grant_replicas
from eplb_service.policies.request import PolicyRequest, even_split, predicted_load, split_by_source
from tests.planning.placements import random_placement

BY_NODE = {"hierarchical", "greedy_by_node"}
BLIND_TO_BUDGETS = {"packing", "greedy", "swift"}
GENERAL = [listed for listed in POLICIES if listed.name not in BY_NODE]
BALANCING = [policy_named("packing"), policy_named("incremental")]
every_policy = pytest.mark.parametrize("listed", GENERAL, ids=lambda listed: listed.name)
every_balancing_policy = pytest.mark.parametrize("listed", BALANCING, ids=lambda p: p.name)


def request_of(
    placement: Placement, heat: object, *, max_moves: int | None = None, seed: int = 0
) -> PolicyRequest:
    return PolicyRequest(
        heat=np.array(heat, dtype=np.float64),
        placement=placement,
        split=even_split(placement.layout.num_ranks),
        layers=tuple(range(placement.num_layers)),
        max_moves=max_moves,
        seed=seed,
    )


def peaks(request: PolicyRequest, placement: Placement) -> list[float]:
    return predicted_load(request.heat, placement, request.split).max(axis=1).tolist()


@st.composite
def requests(draw: st.DrawFn) -> PolicyRequest:
    """Unequal slots, empty slots, silent layers, one hot expert, few experts, tight budgets."""
    slots = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    num_experts = draw(st.integers(1, sum(slots)))
    rng = Random(draw(st.integers(0, 2**32)))
    num_layers = draw(st.integers(1, 3))
    placement = random_placement(
        rng, num_layers=num_layers, num_experts=num_experts, slots_per_rank=slots
    )
    kinds = [
        [0] * num_experts,
        [25] * num_experts,
        [1000] + [1] * (num_experts - 1),
        [rng.randint(0, 99) for _ in range(num_experts)],
        [int(1000 / (n + 1)) for n in range(num_experts)],
    ]
    heat = [rng.choice(kinds) for _ in range(num_layers)]
    budget = draw(st.none() | st.integers(0, 6))
    return request_of(placement, heat, max_moves=budget, seed=rng.randint(0, 99))


@every_policy
@settings(max_examples=30)
@given(request=requests())
def test_a_policy_is_sound_repeatable_and_changes_only_routed_slots(
    listed: Listed, request: PolicyRequest
) -> None:
    heat, phy2log = request.heat.copy(), request.placement.phy2log.copy()
    drawn = listed.draw(request)
    assert not violations(drawn)
    assert not list(kept_experts_keep_their_slot(request.placement, drawn))
    assert ((drawn.phy2log == EMPTY) == (phy2log == EMPTY)).all()
    assert (listed.draw(request).phy2log == drawn.phy2log).all()
    assert (request.heat == heat).all()
    assert (request.placement.phy2log == phy2log).all()


@every_policy
@settings(max_examples=30)
@given(request=requests())
def test_a_budget_is_kept(listed: Listed, request: PolicyRequest) -> None:
    if listed.name not in BLIND_TO_BUDGETS and request.max_moves is not None:
        assert num_moves(request.placement, listed.draw(request)) <= request.max_moves


@every_balancing_policy
@settings(max_examples=30)
@given(request=requests())
def test_no_layer_gets_worse_and_silent_layers_stay(listed: Listed, request: PolicyRequest) -> None:
    drawn = listed.draw(request)
    before, after = peaks(request, request.placement), peaks(request, drawn)
    assert all(now <= then * (1 + 1e-9) for then, now in zip(before, after, strict=True))
    silent = request.heat.sum(axis=1) == 0
    assert (drawn.phy2log[silent] == request.placement.phy2log[silent]).all()


@every_policy
def test_many_threads_draw_what_one_draws(listed: Listed) -> None:
    """Compiled loops run beside each other: nothing may be shared between two plans."""
    flat = initial_placement(num_layers=2, num_experts=48, layout=SlotLayout((7,) * 8))
    rng = np.random.default_rng(5)
    asked = [request_of(flat, rng.lognormal(3, 1, size=(2, 48)), seed=n) for n in range(6)]
    alone = [listed.draw(request).phy2log for request in asked]
    with ThreadPoolExecutor(6) as threads:
        together = [drawn.phy2log for drawn in threads.map(listed.draw, asked * 2)]
    assert all((a == b).all() for a, b in zip(alone * 2, together, strict=True))


@every_policy
def test_shared_experts_are_pinned(listed: Listed) -> None:
    placement = placement_from_ranks(
        [[[0, 1, 4], [2, 3, 4], [0, EMPTY, 4]]], num_experts=4, num_shared=1
    )
    drawn = listed.draw(request_of(placement, [[10, 200, 30, 40]], seed=3))
    assert not list(shared_slots_stay(placement, drawn))
    assert drawn.phy2log[0, 7] == EMPTY


@every_policy
def test_only_the_layers_asked_for_change(listed: Listed) -> None:
    placement = initial_placement(num_layers=3, num_experts=6, layout=SlotLayout((3, 3, 3)))
    asked = request_of(placement, [[90, 30, 30, 12, 12, 6]] * 3)
    request = PolicyRequest(asked.heat, placement, asked.split, layers=(1,))
    drawn = listed.draw(request).phy2log
    assert (drawn[[0, 2]] == placement.phy2log[[0, 2]]).all()


@every_balancing_policy
@pytest.mark.parametrize(
    ("ranks", "heat", "bound"),
    [
        ([[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3]], [400, *[40] * 7], 189),
        ([[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]], [1000, 1, 1, 1, 1], 201),
        ([[0, 1, 2], [3, 4, 5], [0, 1, 2]], [90, 30, 30, 12, 12, 6], 65.1),
        ([[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3]], [70, 64, 33, 31, 9, 8, 3, 2], 59.3),
        ([[0, 1], [1, 2], [2, 0], [0, 1]], [30, 20, 10], 15),
        ([[0, 1, 2], [3, 0, 1]], [83, 26, 11, 30], 78),
        ([[0, 1, 2], [3, 4, 5], [0, 1, 2]], [94, 62, 68, 89, 58, 77], 156),
        ([[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3]], [92, 57, 73, 53, 53, 76, 70, 81], 146),
        ([[0], [1], [2]], [5, 5, 5], 5),
        ([[0, 1, 2, 3], [0]], [8, 4, 4, 4], 16),
    ],
)
def test_the_peak_is_near_the_best_known(
    listed: Listed, ranks: list[list[int]], heat: list[int], bound: float
) -> None:
    placement = placement_from_ranks([ranks], num_experts=len(heat))
    request = request_of(placement, [heat])
    drawn = listed.draw(request)
    assert not violations(drawn)
    assert peaks(request, drawn)[0] <= bound


def test_no_expert_gets_more_replicas_than_there_are_ranks() -> None:
    assert grant_replicas([1000, 2, 1], num_slots=6, max_replicas=3) == [3, 2, 1]
    assert grant_replicas([1000, 0], num_slots=9, max_replicas=3) == [3, 3]


@every_balancing_policy
def test_a_balanced_layer_is_left_alone(listed: Listed) -> None:
    placement = placement_from_ranks([[[0, 1], [0, 1], [2, 3], [2, 3]]], num_experts=4)
    drawn = listed.draw(request_of(placement, [[25, 25, 25, 25]]))
    assert (drawn.phy2log == placement.phy2log).all()


def test_incremental_changes_little_and_the_worst_layer_first() -> None:
    ranks = [[0, 1, 5], [2, 3, 5], [4, 6, 7], [4, 6, 7]]
    placement = placement_from_ranks([ranks] * 2, num_experts=8)
    heat = [[30, 30, 30, 30, 90, 30, 30, 30], [30, 30, 30, 30, 30, 90, 30, 30]]
    request = request_of(placement, heat)
    drawn = policy_named("incremental").draw(request)
    changed = (drawn.phy2log != placement.phy2log).sum(axis=1).tolist()
    assert changed[0] == 0
    assert changed[1] <= 4
    assert peaks(request, drawn)[1] <= 82.5


def test_a_split_by_source_is_what_the_dispatch_tables_do() -> None:
    placement = placement_from_ranks([[[0, 1], [0, 2], [0, 1]]], num_experts=3)
    split = split_by_source(np.array([3.0, 1.0, 2.0]))
    load = predicted_load(np.array([[60.0, 12.0, 6.0]]), placement, split)
    assert load.tolist() == [[30 + 10, 10 + 6, 20 + 2]]


def test_the_seed_of_a_random_placement_decides_it() -> None:
    placement = initial_placement(num_layers=2, num_experts=8, layout=SlotLayout((3,) * 4))
    draws = [
        policy_named("random").draw(request_of(placement, [[0] * 8] * 2, seed=seed)).phy2log
        for seed in (1, 1, 2)
    ]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()
    assert (draws[0] != placement.phy2log).any()


def test_an_unknown_policy_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownPolicy, match=r"'swifter'; there are: static, packing, hier.*random"):
        policy_named("swifter")


def hierarchical_request(*, nodes: int, groups: int) -> PolicyRequest:
    placement = initial_placement(num_layers=1, num_experts=16, layout=SlotLayout((3,) * 8))
    names = tuple(f"n{rank * nodes // 8}" for rank in range(8))
    heat = np.array([[2.0 ** (n % 7) for n in range(16)]])
    return PolicyRequest(heat, placement, even_split(8), (0,), topology=Topology(names, groups))


def test_hierarchical_packing_keeps_a_group_on_one_node() -> None:
    request = hierarchical_request(nodes=2, groups=4)
    drawn = policy_named("hierarchical").draw(request)
    assert not violations(drawn)
    halves = (drawn.phy2log[0, :12] // 4, drawn.phy2log[0, 12:] // 4)
    assert not set(halves[0].tolist()) & set(halves[1].tolist())
    assert peaks(request, drawn)[0] < peaks(request, request.placement)[0]


def test_a_hierarchical_policy_that_does_not_fit_is_noticed_at_registration() -> None:
    request = hierarchical_request(nodes=3, groups=4)
    listed, warning = suited("hierarchical", request)
    assert listed.name == "packing"
    assert "4 groups do not divide over 3 nodes" in warning
    with pytest.raises(InvalidSettings, match="was asked for and does not fit"):
        suited("hierarchical", request, is_forced=True)
    assert suited("hierarchical", hierarchical_request(nodes=2, groups=4))[1] == ""


PRINT_DIGEST = """
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import initial_placement
from eplb_service.policies.catalog import policy_named
from eplb_service.policies.request import PolicyRequest, even_split
import numpy as np
placement = initial_placement(num_layers=1, num_experts=8, layout=SlotLayout((3,) * 4))
request = PolicyRequest(np.array([[25.0] * 7 + [60.0]]), placement, even_split(4), (0,))
print([policy_named(n).draw(request).digest() for n in ("packing", "incremental", "random")])
"""


@pytest.mark.slow
def test_processes_with_other_hash_seeds_draw_the_same() -> None:
    answers = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["packing", "incremental"])
def test_a_large_model_is_planned_in_seconds(name: str) -> None:
    layout = SlotLayout((16,) * 64)
    placement = initial_placement(num_layers=92, num_experts=896, layout=layout)
    heat = np.random.default_rng(0).gamma(0.8, 1000, size=(92, 896)).round()
    start = time.process_time()
    drawn = policy_named(name).draw(request_of(placement, heat, max_moves=256))
    assert time.process_time() - start < 20
    assert not violations(drawn)


@pytest.mark.parametrize(
    ("slots", "said"), [((3, 3, 2, 2), "2 spare slots cannot join 4 ranks"), ((3, 3, 3, 3), "")]
)
def test_too_few_spare_slots_to_join_all_ranks_are_told(slots: tuple[int, ...], said: str) -> None:
    placement = initial_placement(num_layers=1, num_experts=8, layout=SlotLayout(slots))
    request = PolicyRequest(np.ones((1, 8)), placement, even_split(4), (0,))
    warning = unjoined(policy_named("connected"), request)
    assert warning.startswith(said)
    assert bool(warning) == bool(said)
    assert not unjoined(policy_named("packing"), request)
