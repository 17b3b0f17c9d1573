"""A plan is named by the beginning of its id, where only one begins so."""

from dataclasses import replace

import pytest

from eplb_service.controller.desk import PlanRequest
from eplb_service.controller.views import PlanView
from eplb_service.domain.errors import DeploymentBusy, InvalidRequest, UnknownPlan
from tests.controller.group import FLAT
from tests.controller.office import act, office
from tests.controller.test_desks import SKEWED

ANY = PlanRequest(deployment="", policy="", layers=(), reason="", who="tester")


async def test_four_characters_are_enough_for_every_verb_and_fewer_are_not() -> None:
    async with office() as o:
        await o.register(FLAT)
        o.report(SKEWED)
        drawn = await o.controller.operators.plan(ANY)
        assert isinstance(drawn, PlanView)
        plan_id = drawn.plan.plan_id
        start = plan_id[:4]
        assert (await o.controller.operators.explain("", start)).plan.plan_id == plan_id
        with pytest.raises(UnknownPlan):
            await o.controller.operators.explain("", plan_id[:3])
        assert (await o.controller.acts.apply(act(), start)).plan_id == plan_id
        with pytest.raises(DeploymentBusy, match=f"^plan {plan_id} is running already"):
            await o.controller.acts.apply(act(), plan_id)
        assert (await o.controller.operators.run("", start)).plan_id == plan_id
        assert (await o.controller.acts.abort(act(), start)).plan_id == plan_id


async def test_plans_that_begin_alike_are_named_and_none_is_taken() -> None:
    async with office() as o:
        await o.register(FLAT)
        o.report(SKEWED)
        await o.controller.operators.plan(ANY)
        book = o.controller.registry.find("").book
        [kept] = list(book.newest_first())
        for plan_id in ("abcd1111", "abcd2222"):
            book.keep(replace(kept, plan=replace(kept.plan, plan_id=plan_id)))
        with pytest.raises(InvalidRequest, match="abcd1111, abcd2222"):
            await o.controller.acts.apply(act(), "abcd")
        explained = await o.controller.operators.explain("", "abcd2")
        assert explained.plan.plan_id == "abcd2222"
