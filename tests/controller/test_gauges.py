"""What the controller shows of a deployment is what it holds, in a bounded number of series."""

from dataclasses import replace

import numpy as np
import pytest

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.desk import PlanRequest
from eplb_service.controller.gauges import show
from eplb_service.controller.meter import Promise, Undoing
from eplb_service.controller.views import PlanView
from eplb_service.domain.deployment import ModelShape
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.metric_names import METRICS, Kind
from eplb_service.domain.placement import Placement, initial_placement, placement_from_ranks
from eplb_service.load.group import Group
from eplb_service.load.window import empty_window
from eplb_service.protocol.messages import Dropped, DropReason, WaveName
from eplb_service.settings.tree import GateSettings
from tests.controller.group import FLAT, IDENTITY, SWAPPED
from tests.controller.office import SETTINGS, Office, act, office
from tests.controller.ranks import start_ranks

NAME = IDENTITY.name
BUCKETED = {
    metric.name: len(metric.buckets) + 2 for metric in METRICS if metric.kind is Kind.HISTOGRAM
}
SKEWED = np.array([[100, 100, 20, 20]], dtype=np.int64)
EVEN = np.array([[60, 60, 60, 60]], dtype=np.int64)


def shown(o: Office) -> Deployment:
    [deployment] = o.controller.registry.all()
    show(deployment, o.controller.registry.tools)
    return deployment


def value(o: Office, name: str, *labels: str) -> float | None:
    return o.figures.values.get((name, NAME, *labels))


def num_series(o: Office) -> int:
    return sum(BUCKETED.get(name, 1) for name, *_ in o.figures.values)


async def register_shape(o: Office, placement: Placement) -> None:
    """Let a group of a shape of its own greet."""
    shape = ModelShape(tuple(range(placement.num_layers)), placement.num_experts, 0, 2, 100)
    o.ranks = start_ranks(placement)
    for rank in o.ranks:
        rank.hello = replace(rank.hello, shape=shape)
    o.links = [await o.controller.ranks.hello(rank.greeting(), rank) for rank in o.ranks]


@pytest.mark.parametrize(
    ("layers", "ranks", "experts", "most"), [(61, 72, 256, 437), (92, 64, 896, 514)]
)
async def test_series_are_bounded_by_layers_and_ranks_whatever_the_experts(
    layers: int, ranks: int, experts: int, most: int
) -> None:
    """Issue family F49: at most 4 per layer, 2 per rank and 60 others, at 61 layers, 72 ranks."""
    slots = -(-experts // ranks) + 1
    placement = initial_placement(
        num_layers=layers, num_experts=experts, layout=SlotLayout((slots,) * ranks)
    )
    async with office() as o:
        await register_shape(o, placement)
        o.report(np.full((layers, slots * ranks), 2, dtype=np.int64))
        deployment = shown(o)
        deployment.meter.promise = Promise(np.ones(layers), np.ones(layers))
        deployment.meter.shown.window = (-1, -1, -1, -1)
        shown(o)
        per_expert = [key for key in o.figures.values if "expert" in key[0] and len(key) > 2]
        assert len(per_expert) == 5
        assert 3 * layers + 2 * ranks < num_series(o) <= most
        assert o.figures.heat[NAME].shape == (layers, experts)


async def test_imbalance_is_shown_as_seen_planned_and_realised() -> None:
    settings = SETTINGS.model_copy(update={"gates": GateSettings(min_steps=20)})
    async with office(settings=settings) as o:
        await o.register(FLAT)
        o.report(SKEWED)
        shown(o)
        assert value(o, "eplb_layer_imbalance_ratio", "0") == pytest.approx(200 / 120)
        assert value(o, "eplb_layer_planned_imbalance_ratio", "0") is None
        asked = PlanRequest(deployment="", policy="packing", layers=(), reason="", who="tester")
        drawn = await o.controller.operators.plan(asked)
        assert isinstance(drawn, PlanView)
        await o.controller.acts.apply(act(), drawn.plan.plan_id)
        await o.settle()
        shown(o)
        assert value(o, "eplb_layer_planned_imbalance_ratio", "0") == pytest.approx(1.0)
        assert value(o, "eplb_layer_realised_imbalance_ratio", "0") is None
        o.report(EVEN, steps=(1000, 1010, 1020))
        shown(o)
        assert value(o, "eplb_layer_realised_imbalance_ratio", "0") == pytest.approx(1.0)
        assert value(o, "eplb_moves_total", "settled") == 2
        assert value(o, "eplb_plans_ended_total", "done") == 1
        assert value(o, "eplb_phase_duration_seconds", "stage") == 1
        assert value(o, "eplb_phase_duration_seconds", "cutover") == 1


async def test_a_rank_that_leaves_is_away_and_its_only_experts_are_at_risk() -> None:
    async with office() as o:
        await o.register(FLAT)
        o.report(EVEN)
        shown(o)
        assert value(o, "eplb_rank_silence_seconds", "1") is None
        await o.links[1].closed()
        shown(o)
        assert value(o, "eplb_ranks", "away") == 1
        assert value(o, "eplb_single_replica_experts") == 4
        assert value(o, "eplb_single_replica_experts_at_risk") == 2
        assert value(o, "eplb_rank_silence_seconds", "1") is not None
        o.links[1] = await o.controller.ranks.hello(o.ranks[1].greeting(), o.ranks[1])
        shown(o)
        assert value(o, "eplb_rank_silence_seconds", "1") is None
        assert value(o, "eplb_streams_opened_total") == 3


async def test_a_wrong_digest_is_counted() -> None:
    async with office() as o:
        await o.register(FLAT)
        assert value(o, "eplb_digest_mismatches_total") == 0
        served = o.ranks[0].state.served
        wave = WaveName(served.epoch, served.placement)
        await o.links[0].said(Dropped(wave, 20, DropReason.DIGEST_MISMATCH))
        assert value(o, "eplb_digest_mismatches_total") == 1


def test_a_move_that_puts_back_what_the_last_one_took_is_undone() -> None:
    undoing = Undoing()
    assert [x.tolist() for x in undoing.counted(FLAT, SWAPPED)] == [[2], [0]]
    assert [x.tolist() for x in undoing.counted(SWAPPED, FLAT)] == [[2], [2]]
    other = placement_from_ranks([[[0, 3], [2, 1]]], num_experts=4)
    assert [x.tolist() for x in undoing.counted(FLAT, other)] == [[2], [0]]


def test_a_move_into_another_slot_of_the_rank_undoes_as_well() -> None:
    there = placement_from_ranks([[[4, 5, 2], [3, 0, 1]]], num_experts=6)
    here = placement_from_ranks([[[0, 1, 2], [3, 4, 5]]], num_experts=6)
    back = placement_from_ranks([[[1, 0, 2], [3, 5, 4]]], num_experts=6)
    undoing = Undoing()
    undoing.counted(here, there)
    assert [x.tolist() for x in undoing.counted(there, back)] == [[4], [4]]


def test_a_promise_is_judged_by_the_first_window_that_is_long_enough() -> None:
    profiles = tuple(rank.hello.profile for rank in start_ranks(FLAT))
    group = Group(start_ranks(FLAT)[0].state.served.epoch, FLAT, profiles, top_k=2)
    window = replace(empty_window(group, None), first_step=10, last_step=60)
    promise = Promise()
    assert not promise.is_due(window, min_steps=50)
    promise.give(np.array([1.1]))
    assert not promise.is_due(window, min_steps=51)
    assert promise.is_due(window, min_steps=50)
    promise.realised = np.array([1.2])
    assert not promise.is_due(window, min_steps=50)
    promise.give(np.array([1.0]))
    assert promise.is_due(window, min_steps=50)
