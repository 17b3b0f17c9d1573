"""What waves moved, and how fast, is measured and prices the next plan."""

import numpy as np
import pytest

from eplb_service.controller.desk import MapRequest
from eplb_service.controller.drawing import Draw, task_of
from eplb_service.controller.planning import ToPlacement
from eplb_service.controller.yielding import LEAST_SHARE
from eplb_service.domain.map_file import format_map
from eplb_service.domain.plan import Cause, Origin
from eplb_service.policies.terms import Terms
from eplb_service.settings.tree import BudgetSettings
from tests.controller.group import FLAT, SHAPE, SWAPPED
from tests.controller.office import SETTINGS, Office, act, office


async def test_a_wave_that_settled_tells_how_fast_links_are() -> None:
    async with office() as o:
        await o.register(FLAT)
        [deployment] = list(o.controller.registry.all())
        draw = Draw(ToPlacement(SWAPPED), (), Cause(Origin.OPERATOR, "test"))
        assert task_of(deployment, draw).timing.bytes_per_s == 0
        await o.controller.acts.import_map(act(), MapRequest(format_map(SWAPPED, SHAPE.layers)))
        await o.settle()
        assert o.ranks[0].placement.digest() == SWAPPED.digest()
        links = deployment.links
        assert links.num_bytes == 2 * SHAPE.bytes_per_expert
        assert links.busiest_bytes == SHAPE.bytes_per_expert
        assert task_of(deployment, draw).timing.bytes_per_s == links.busiest_bytes / links.seconds


async def round_bytes_after_a_wave(o: Office, *, step_s: float) -> int:
    """What a round may hold after a wave during which a step took so long on the mean."""
    even = np.full((1, 4), 100, dtype=np.int64)
    await o.register(FLAT)
    o.report(even)
    await o.controller.acts.import_map(act(), MapRequest(format_map(SWAPPED, SHAPE.layers)))
    o.report(even, steps=(40,), first=3, step_s=step_s)
    await o.settle()
    [deployment] = list(o.controller.registry.all())
    draw = Draw(ToPlacement(FLAT), (), Cause(Origin.OPERATOR, "test"))
    return task_of(deployment, draw).limits.round_bytes


async def test_rounds_get_fewer_bytes_where_moving_made_steps_slower() -> None:
    budget = BudgetSettings(round_bytes=16 * SHAPE.bytes_per_expert)
    settings = SETTINGS.model_copy(update={"budget": budget})
    found: list[int] = []
    for step_s in (0.04, 0.0402, 0.08):
        async with office(settings=settings) as o:
            found.append(await round_bytes_after_a_wave(o, step_s=step_s))
    undisturbed, a_little, much = found
    assert undisturbed == budget.round_bytes
    assert much == budget.round_bytes // LEAST_SHARE
    assert much <= a_little <= undisturbed


async def test_plans_count_with_the_speeds_and_costs_that_were_set() -> None:
    planning = SETTINGS.planning.model_copy(update={"rank_speeds": (1.0, 3.0), "expert_cost": 2.0})
    async with office(settings=SETTINGS.model_copy(update={"planning": planning})) as o:
        await o.register(FLAT)
        o.report(np.full((1, 4), 100, dtype=np.int64))
        [deployment] = list(o.controller.registry.all())
        task = task_of(deployment, Draw(ToPlacement(SWAPPED), (), Cause(Origin.OPERATOR, "test")))
        assert task.timing.terms == Terms(fixed=2.0 * task.heat.num_steps, speeds=(1.0, 3.0))
        # Both ranks have 200 tokens a step of 10 and two experts; the second is as fast as three.
        assert task.heat.num_steps == 20
        (view,) = await o.controller.operators.status("")
        assert view.imbalance.mean == pytest.approx(2.0)
