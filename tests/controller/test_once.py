"""Under one request id every verb acts once: told again it is answered as before."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from eplb_service.controller.desk import ActDesk, ActRequest, MapRequest
from eplb_service.controller.views import PlanView
from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.protocol.rank_state import RaiseHalt
from tests.controller.group import FLAT
from tests.controller.office import act, office
from tests.controller.test_desks import ANY, ready

COOL = {"gates.cooldown_s": "20.0"}
OTHER = {"gates.cooldown_s": "30.0"}
Said = Callable[[ActDesk, ActRequest], Awaitable[object]]
VERBS: dict[str, tuple[Said, Said]] = {
    "freeze": (lambda d, a: d.freeze(a, 60), lambda d, a: d.freeze(a, 90)),
    "unfreeze": (lambda d, a: d.freeze(a, 0), lambda d, a: d.freeze(a, 60)),
    "config": (lambda d, a: d.set_config(a, COOL), lambda d, a: d.set_config(a, OTHER)),
    "rollback": (lambda d, a: d.rollback(a, 0), lambda d, a: d.rollback(a, None)),
    "rebalance": (
        lambda d, a: d.rebalance(a, ANY),
        lambda d, a: d.rebalance(a, replace(ANY, layers=(0,))),
    ),
    "import": (
        lambda d, a: d.import_map(a, MapRequest(format_map(FLAT, (0,)))),
        lambda d, a: d.import_map(a, MapRequest(format_map(FLAT, (0,)), is_dry_run=True)),
    ),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_said_again_it_is_answered_as_before_and_told_once(verb: str) -> None:
    say, _ = VERBS[verb]
    async with office() as o:
        await ready(o)
        first = await say(o.controller.acts, act("r1"))
        told = await o.controller.operators.history("", 50)
        assert await say(o.controller.acts, act("r1")) is first
        assert await o.controller.operators.history("", 50) == told


@pytest.mark.parametrize("verb", VERBS)
async def test_an_id_of_another_act_is_refused_by_name(verb: str) -> None:
    say, say_other = VERBS[verb]
    async with office() as o:
        await ready(o)
        await say(o.controller.acts, act("r1"))
        was = "an unfreeze" if verb == "unfreeze" else f"another {verb}"
        with pytest.raises(InvalidRequest, match=f"request r1 was {was}"):
            await say_other(o.controller.acts, act("r1"))


@pytest.mark.parametrize("verb", VERBS)
async def test_an_id_of_another_verb_is_refused_by_both_names(verb: str) -> None:
    say, _ = VERBS[verb]
    other = "config" if verb != "config" else "freeze"
    async with office() as o:
        await ready(o)
        await VERBS[other][0](o.controller.acts, act("r1"))
        told = await o.controller.operators.history("", 50)
        with pytest.raises(InvalidRequest, match=f"r1 was .*{other}.*this is .*{verb}"):
            await say(o.controller.acts, act("r1"))
        assert await o.controller.operators.history("", 50) == told


async def test_a_freeze_said_again_lasts_no_longer() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.freeze(act("fz"), 60)
        (deployment,) = o.controller.registry.all()
        until = deployment.switches.freeze
        await o.controller.acts.freeze(act("fz"), 60)
        assert deployment.switches.freeze is until


async def test_drains_said_again_are_answered_as_before() -> None:
    async with office() as o:
        await o.register(placement_from_ranks([[[0, 1], [2, 3], [0, 2]]], num_experts=4))
        first = await o.controller.acts.drain(act("d1"), 1)
        assert await o.controller.acts.drain(act("d1"), 1) is first
        with pytest.raises(InvalidRequest, match="request d1 was another drain"):
            await o.controller.acts.drain(act("d1"), 0)
        with pytest.raises(InvalidRequest, match="request d1 was a drain, and this is an undrain"):
            await o.controller.acts.undrain(act("d1"), 1)
        await o.settle()
        back = await o.controller.acts.undrain(act("d2"), 1)
        assert await o.controller.acts.undrain(act("d2"), 1) is back


async def test_a_resume_said_again_is_answered_as_before() -> None:
    async with office() as o:
        await ready(o)
        o.ranks[1].feed(RaiseHalt("slot 3 is corrupt"))
        await o.settle(3)
        first = await o.controller.acts.resume(act("r1"), 1)
        await o.settle(3)
        assert await o.controller.acts.resume(act("r1"), 1) is first
        with pytest.raises(InvalidRequest, match="request r1 was another resume"):
            await o.controller.acts.resume(act("r1"), 2)


async def test_an_act_that_was_refused_may_be_tried_again_under_its_id() -> None:
    async with office() as o:
        await ready(o)
        with pytest.raises(InvalidRequest, match="a freeze of"):
            await o.controller.acts.freeze(act("fz"), -1)
        await o.controller.acts.freeze(act("fz"), 60)


async def test_an_apply_is_no_abort() -> None:
    async with office() as o:
        await ready(o)
        plan = await o.controller.operators.plan(ANY)
        assert isinstance(plan, PlanView)
        await o.controller.acts.apply(act("r1"), plan.plan.plan_id)
        with pytest.raises(InvalidRequest, match="r1 was an apply, and this is an abort"):
            await o.controller.acts.abort(act("r1"), plan.plan.plan_id)
