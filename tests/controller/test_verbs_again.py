"""Verbs that are said twice, too late, or with a number that means something; and by whom."""

from dataclasses import replace

import pytest

from eplb_service.controller.views import PlanView
from eplb_service.domain.errors import InvalidRequest, MisfitPlacement, NotReady
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.plan import Cause, Origin
from eplb_service.protocol.rank_state import RaiseHalt
from tests.controller.group import FLAT
from tests.controller.office import act, office
from tests.controller.test_desks import ANY, ready

WIDE = placement_from_ranks([[[0], [1], [2], [3]]], num_experts=4)


async def test_epoch_0_is_an_epoch_to_roll_back_to_like_any_other() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.rebalance(act(), ANY)
        await o.settle()
        served = o.ranks[0].placement.digest()
        await o.controller.acts.rollback(act(), None)
        await o.settle()
        await o.controller.acts.rollback(act(), 1)
        await o.settle()
        assert o.ranks[0].placement.digest() == served
        back = await o.controller.acts.rollback(act(reason="worse"), 0)
        assert isinstance(back, PlanView)
        await o.settle()
        assert all(r.placement.digest() == FLAT.digest() for r in o.ranks)
        lines = [e.text for e in (await o.controller.operators.history("", 20)).entries]
        assert "epoch 4 settled: rollback to epoch 0: worse" in lines


async def test_an_epoch_of_another_shape_cannot_be_rolled_back_to() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.rebalance(act(), ANY)
        await o.settle()
        await o.register(WIDE, incarnation=2)
        with pytest.raises(MisfitPlacement, match="ranks 2, expected 4"):
            await o.controller.acts.rollback(act(), 1)


async def test_an_abort_that_is_said_again_gets_the_same_answer() -> None:
    async with office() as o:
        await ready(o)
        plan = await o.controller.acts.rebalance(act(), ANY)
        assert isinstance(plan, PlanView)
        first = await o.controller.acts.abort(act("a1"), plan.plan.plan_id)
        await o.settle()
        assert await o.controller.acts.abort(act("a1"), plan.plan.plan_id) is first
        with pytest.raises(InvalidRequest, match="is not running, it is done"):
            await o.controller.acts.abort(act("a2"), plan.plan.plan_id)


async def test_a_request_id_that_asked_for_something_else_is_refused() -> None:
    async with office() as o:
        await ready(o)
        plan = await o.controller.operators.plan(ANY)
        assert isinstance(plan, PlanView)
        await o.controller.acts.apply(act("r1"), plan.plan.plan_id)
        with pytest.raises(InvalidRequest, match="request r1 was another apply; an id acts once"):
            await o.controller.acts.apply(act("r1"), "ffffffff")


async def test_a_halt_is_not_resumed_while_a_rank_would_not_hear_of_it() -> None:
    async with office() as o:
        await ready(o)
        o.ranks[1].feed(RaiseHalt("slot 3 is corrupt"))
        await o.settle(3)
        await o.links[0].closed()
        with pytest.raises(NotReady, match=r"ranks \[0\] are not connected"):
            await o.controller.acts.resume(act(), 1)


async def test_history_says_who_applied_a_plan_and_why() -> None:
    async with office() as o:
        await ready(o)
        plan = await o.controller.operators.plan(ANY)
        assert isinstance(plan, PlanView)
        await o.controller.acts.apply(act(reason="hot shard"), plan.plan.plan_id)
        await o.settle()
        view = await o.controller.operators.history("", 50)
        told = [entry for entry in view.entries if "applied: hot shard" in entry.text]
        assert {entry.kind for entry in told} == {"plan", "wave"}
        assert {entry.who for entry in told} == {"tester"}


async def test_a_plan_says_who_asked_for_it_last() -> None:
    async with office() as o:
        await ready(o)
        asked = replace(ANY, who="ada", reason="evening peak")
        plan = await o.controller.operators.plan(asked)
        assert isinstance(plan, PlanView)
        assert (plan.plan.cause.who, plan.plan.cause.reason) == ("ada", "evening peak")
        await o.controller.acts.apply(act(reason="go"), plan.plan.plan_id)
        (look,) = await o.controller.page.looks()
        assert look.plans[0].cause == Cause(Origin.OPERATOR, "evening peak; applied: go", "tester")


async def test_nobody_asked_for_what_the_controller_draws_by_itself() -> None:
    async with office() as o:
        await ready(o)
        (deployment,) = o.controller.registry.all()
        await o.controller.planner.plan_once(deployment)
        await o.settle()
        (look,) = await o.controller.page.looks()
        assert look.plans[0].cause == Cause(Origin.AUTOMATIC, "interval")
        view = await o.controller.operators.history("", 50)
        assert {(entry.kind, entry.who) for entry in view.entries} == {("plan", ""), ("wave", "")}


async def test_every_act_that_changes_something_is_told_with_who_asked() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.freeze(act(), 60)
        await o.controller.acts.freeze(act(), 0)
        await o.controller.acts.set_config(act(), {"gates.cooldown_s": "20.0"})
        await o.controller.acts.rebalance(act(), ANY)
        await o.settle()
        view = await o.controller.operators.history("", 50)
        by_kind = {entry.kind: entry.who for entry in view.entries}
        kinds = ("freeze", "unfreeze", "config", "plan", "wave")
        assert by_kind == dict.fromkeys(kinds, "tester")
