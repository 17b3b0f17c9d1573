"""A rank is drained and let in again: by plans, on record, and in eplbctl's words."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from eplb_service.cli.main import main
from eplb_service.controller.desk import PlanRequest
from eplb_service.controller.drawing import Draw, task_of
from eplb_service.controller.planning import ToPlacement
from eplb_service.controller.records import DrainNote
from eplb_service.controller.views import NothingView, PlanView
from eplb_service.domain.errors import InvalidPlacement, InvalidRequest, UnknownRank
from eplb_service.domain.placement import EMPTY, placement_from_ranks
from eplb_service.domain.plan import Answer, Cause, Origin
from eplb_service.server.serving import ControllerServer, Desks, ServerOptions
from eplb_service.settings.tree import BudgetSettings
from eplb_service.store.memory import MemoryStore
from tests.controller.group import IDENTITY
from tests.controller.office import SETTINGS, Office, act, office

THREE = placement_from_ranks([[[0, 1], [2, 3], [0, 2]]], num_experts=4)
NARROW = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)


def held_by(o: Office, rank: int) -> list[int]:
    """What a rank machine holds in layer 0."""
    placement = o.ranks[rank].placement
    return placement.phy2log[0, placement.layout.slots_of(rank)].tolist()


async def drained_of(o: Office) -> tuple[int, ...]:
    [view] = await o.controller.operators.status("")
    return view.operation.drained


async def test_a_drained_rank_is_emptied_and_what_only_it_held_is_copied_first() -> None:
    async with office() as o:
        await o.register(THREE)
        view = await o.controller.acts.drain(act(), 1)
        assert isinstance(view, PlanView)
        assert "drain of rank 1" in view.plan.cause.reason
        assert "copied to another rank first, as none holds them: expert 3 of layer 0" in (
            view.plan.cause.reason
        )
        await o.settle()
        assert held_by(o, 1) == [EMPTY, EMPTY]
        assert sorted({*held_by(o, 0), *held_by(o, 2)}) == [0, 1, 2, 3]
        assert await drained_of(o) == (1,)
        told = (await o.controller.operators.history("", 9)).entries
        assert [(e.kind, e.who) for e in told if e.kind != "wave"] == [
            ("plan", "tester"),
            ("plan", "tester"),
            ("drain", "tester"),
        ]


async def test_a_rank_is_safe_to_take_out_only_once_nothing_is_left_there() -> None:
    async with office() as o:
        await o.register(THREE)
        await o.controller.acts.drain(act(), 1)
        [before] = await o.controller.operators.status("")
        assert before.operation.drained_so_far == (
            "not yet: 2 slots there still hold an expert, and no other rank holds "
            "expert 3 of layer 0"
        )
        await o.settle()
        [after] = await o.controller.operators.status("")
        assert after.operation.drained_so_far == "safe to take out: no expert is left there"
        await o.controller.acts.undrain(act("r2"), 1)
        await o.settle()
        [again] = await o.controller.operators.status("")
        assert again.operation.drained_so_far == ""


async def test_a_drain_outlives_the_controller_and_undrain_fills_the_rank_again() -> None:
    store = MemoryStore()
    async with office(store) as o:
        await o.register(THREE)
        await o.controller.acts.drain(act(), 1)
        await o.settle()
        held = o.ranks[0].placement
    async with office(store) as o:
        await o.register(held, epoch=1)
        assert await drained_of(o) == (1,)
        asked = PlanRequest("", "packing", (), "", "tester")
        assert isinstance(await o.controller.operators.plan(asked), NothingView)
        assert isinstance(await o.controller.acts.undrain(act(), 1), PlanView)
        await o.settle()
        assert EMPTY not in held_by(o, 1)
        assert await drained_of(o) == ()


async def test_a_drained_rank_that_is_away_is_named_as_no_source() -> None:
    async with office() as o:
        await o.register(THREE)
        [deployment] = list(o.controller.registry.all())
        draw = Draw(ToPlacement(THREE), (), Cause(Origin.OPERATOR, "test"), masked=(1,))
        assert task_of(deployment, draw).limits.dead == ()
        await o.links[1].closed()
        assert task_of(deployment, draw).limits.dead == (1,)
        kept = replace(draw, masked=())
        assert task_of(deployment, kept).limits.dead == ()


async def test_a_drain_without_room_is_refused_with_numbers_and_changes_nothing() -> None:
    async with office() as o:
        await o.register(NARROW)
        says = r"without ranks \[0\] layer 0 has 2 slots for 4 experts: 2 experts are without room"
        with pytest.raises(InvalidRequest, match=says):
            await o.controller.acts.drain(act(), 0)
        assert await drained_of(o) == ()
        assert held_by(o, 0) == [0, 1]


@pytest.mark.parametrize("verb", ["drain", "undrain"])
async def test_a_rank_that_does_not_exist_is_named(verb: str) -> None:
    async with office() as o:
        await o.register(THREE)
        with pytest.raises(UnknownRank, match=r"rank 3 does not exist; .* has ranks 0 to 2"):
            await getattr(o.controller.acts, verb)(act(), 3)


async def test_undrain_wants_a_rank_that_is_drained() -> None:
    async with office() as o:
        await o.register(THREE)
        with pytest.raises(InvalidRequest, match="rank 0 is not drained; drained are none"):
            await o.controller.acts.undrain(act(), 0)


async def test_the_way_back_over_a_drain_is_refused_while_it_lasts() -> None:
    async with office() as o:
        await o.register(THREE)
        await o.controller.acts.drain(act(), 1)
        await o.settle()
        with pytest.raises(InvalidPlacement, match="rank 1, which is drained"):
            await o.controller.acts.rollback(act(), None)


async def test_a_drain_whose_first_wave_is_beyond_the_budget_is_judged_no_and_not_begun() -> None:
    settings = SETTINGS.model_copy(update={"budget": BudgetSettings(max_moves=1)})
    async with office(settings=settings) as o:
        await o.register(placement_from_ranks([[[0, 1], [2, 3], [0, 1]]], num_experts=4))
        view = await o.controller.acts.drain(act(), 1)
        assert isinstance(view, PlanView)
        said = {found.gate: found for found in view.verdict.findings}["move_budget"]
        assert said.answer is view.verdict.answer is Answer.NO
        assert "2 moves exceed the budget of 1" in said.text
        assert await drained_of(o) == ()


async def test_the_planner_goes_on_where_no_plan_has_emptied_a_drained_rank_yet() -> None:
    store = MemoryStore()
    async with office(store) as o:
        await o.register(THREE)
        await store.keep(o.controller.registry.generation, IDENTITY.name, DrainNote((1,)))
    async with office(store) as o:
        await o.register(THREE)
        [deployment] = list(o.controller.registry.all())
        await o.controller.planner.plan_once(deployment)
        await o.settle()
        assert held_by(o, 1) == [EMPTY, EMPTY]


@asynccontextmanager
async def served(o: Office) -> AsyncGenerator[str]:
    """The controller behind a real server: its endpoint."""
    desks = Desks(
        o.controller.ranks, o.controller.operators, o.controller.acts, o.controller.operators
    )
    server = ControllerServer(desks, o.figures, ServerOptions(stop_grace_s=0.1))
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


async def test_eplbctl_drains_shows_and_undrains(capsys: pytest.CaptureFixture[str]) -> None:
    async with office() as o:
        await o.register(THREE)
        async with served(o) as endpoint:

            async def ctl(*words: str) -> tuple[int, str, str]:
                code = await asyncio.to_thread(main, ("--endpoint", endpoint, *words))
                said = capsys.readouterr()
                return code, said.out, said.err

            code, out, err = await ctl("drain", "1", "--reason", "swap the NPU")
            assert (code, err) == (0, "")
            assert "moves" in out
            await o.settle()
            code, out, _ = await ctl("status")
            assert code == 0
            assert "drained      rank 1   safe to take out: no expert is left there\n" in out
            code, out, err = await ctl("drain", "0")
            assert code == 2
            assert "without ranks [0, 1] layer 0 has 2 slots for 4 experts" in err
            code, out, err = await ctl("history")
            assert "swap the NPU" in out
            assert (await ctl("undrain", "1"))[0] == 0
            await o.settle()
            assert "drained" not in (await ctl("status"))[1]
            assert EMPTY not in held_by(o, 1)
