"""What operators can do, against a whole controller in one process."""

import numpy as np
import pytest

from eplb_service.controller.desk import PlanRequest
from eplb_service.controller.machine_state import Event, RankStepped, Ticked
from eplb_service.controller.views import NothingView, PlanView
from eplb_service.domain.errors import (
    DeploymentBusy,
    DeploymentHalted,
    InsufficientSamples,
    InvalidReport,
    InvalidRequest,
    InvalidSettings,
    NotReady,
    PlannerFailed,
    PlanOvertaken,
    PlanRejected,
    UnknownDeployment,
    UnknownEpoch,
    UnknownPlan,
    UnknownPolicy,
)
from eplb_service.protocol.messages import Idle
from eplb_service.protocol.rank_state import RaiseHalt
from eplb_service.store.memory import MemoryStore
from tests.controller.group import FLAT
from tests.controller.office import Office, act, office

SKEWED = np.array([[400, 100, 50, 50]], dtype=np.int64)
EVEN = np.array([[100, 100, 100, 100]], dtype=np.int64)
ANY = PlanRequest(deployment="", policy="", layers=(), reason="", who="tester")


async def ready(o: Office, tokens: np.ndarray = SKEWED) -> None:
    await o.register(FLAT)
    o.report(tokens)


async def test_status_tells_of_ranks_window_and_imbalance() -> None:
    async with office() as o:
        await ready(o)
        (view,) = await o.controller.operators.status("")
        assert (view.epoch, view.generation) == (0, 1)
        assert [rank.is_connected for rank in view.ranks] == [True, True]
        assert view.window.num_steps == 20
        assert view.imbalance.mean == pytest.approx(500 / 300)
        assert view.operation.running is None


async def test_heat_names_layers_as_the_model_does() -> None:
    async with office() as o:
        await ready(o)
        view = await o.controller.operators.heat("", ())
        assert view.model_layers == (1,)
        assert view.tokens.tolist() == [[800, 200, 100, 100]]
        with pytest.raises(InvalidRequest, match="layer 3 does not exist"):
            await o.controller.operators.heat("", (3,))


async def test_heat_without_load_is_no_data_and_not_zero() -> None:
    async with office() as o:
        await o.register(FLAT)
        with pytest.raises(InsufficientSamples):
            await o.controller.operators.heat("", ())


async def test_a_plan_changes_nothing_until_it_is_applied() -> None:
    async with office() as o:
        await ready(o)
        plan = await o.controller.operators.plan(ANY)
        assert isinstance(plan, PlanView)
        assert plan.is_dry_run
        assert plan.verdict.answer == "yes"
        # Priced under the forecast, which knows that a count is a draw and not the share itself.
        assert plan.plan.price.imbalance_before[0] == pytest.approx(500 / 300, rel=0.005)
        assert plan.plan.price.imbalance_after[0] == pytest.approx(1.5, rel=0.005)
        assert {rank.state.served.epoch for rank in o.ranks} == {0}
        await o.controller.acts.apply(act(), plan.plan.plan_id)
        await o.settle()
        assert {rank.state.served.epoch for rank in o.ranks} == {1}
        run = await o.controller.operators.run("", plan.plan.plan_id)
        assert (run.phase, run.epoch, run.moves) == ("done", 1, plan.plan.price.num_moves)
        assert run.bytes_moved == plan.plan.price.num_bytes > 0


async def test_rebalance_acts_once_per_request_id() -> None:
    async with office() as o:
        await ready(o)
        first = await o.controller.acts.rebalance(act("r1"), ANY)
        again = await o.controller.acts.rebalance(act("r1"), ANY)
        assert first is again
        await o.settle()
        assert {rank.state.served.epoch for rank in o.ranks} == {1}


async def test_rebalance_of_a_balanced_deployment_does_nothing() -> None:
    async with office() as o:
        await ready(o, EVEN)
        found = await o.controller.acts.rebalance(act(), ANY)
        assert isinstance(found, NothingView)
        assert found.reason == "balanced"


async def test_a_plan_over_the_budget_is_refused_by_its_gate() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.set_config(act(), {"budget.max_moves": "1"})
        request = PlanRequest(deployment="", policy="packing", layers=(), reason="", who="tester")
        plan = await o.controller.operators.plan(request)
        assert isinstance(plan, PlanView)
        assert plan.plan.price.num_moves > 1
        with pytest.raises(PlanRejected, match="move_budget"):
            await o.controller.acts.apply(act(), plan.plan.plan_id)


async def test_a_second_plan_waits_for_the_first() -> None:
    async with office() as o:
        await ready(o)
        plan = await o.controller.operators.plan(ANY)
        assert isinstance(plan, PlanView)
        await o.controller.acts.apply(act(), plan.plan.plan_id)
        with pytest.raises(DeploymentBusy, match=plan.plan.plan_id):
            await o.controller.acts.apply(act(), plan.plan.plan_id)


async def test_an_overtaken_plan_is_refused() -> None:
    async with office() as o:
        await ready(o)
        plan = await o.controller.operators.plan(ANY)
        assert isinstance(plan, PlanView)
        await o.controller.acts.apply(act(), plan.plan.plan_id)
        await o.settle()
        with pytest.raises(PlanOvertaken, match="epoch 1"):
            await o.controller.acts.apply(act(), plan.plan.plan_id)


async def test_rollback_is_a_new_epoch_with_the_old_content() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.rebalance(act(), ANY)
        await o.settle()
        back = await o.controller.acts.rollback(act(reason="worse"), None)
        assert isinstance(back, PlanView)
        assert "rollback to epoch 0" in back.plan.cause.reason
        await o.settle()
        assert {rank.state.served.epoch for rank in o.ranks} == {2}
        assert all(r.placement.digest() == FLAT.digest() for r in o.ranks)
        with pytest.raises(UnknownEpoch, match="epoch 9"):
            await o.controller.acts.rollback(act(), 9)


async def test_a_freeze_outlives_the_controller_and_stops_rebalancing() -> None:
    store = MemoryStore()
    async with office(store) as o:
        await ready(o)
        await o.controller.acts.freeze(act(reason="launch day"), 7200)
    async with office(store) as o:
        await ready(o)
        (view,) = await o.controller.operators.status("")
        assert view.operation.freeze is not None
        assert view.operation.freeze.reason == "launch day"
        found = await o.controller.acts.rebalance(act(), ANY)
        assert isinstance(found, PlanView)
        assert found.verdict.answer == "no"
        assert {f.gate for f in found.verdict.findings if f.answer == "no"} == {"freeze"}
        await o.controller.acts.freeze(act(), 0)
        found = await o.controller.acts.rebalance(act(), ANY)
        assert isinstance(found, PlanView)
        assert found.verdict.answer == "yes"


async def test_settings_change_all_or_none_and_are_kept() -> None:
    store = MemoryStore()
    async with office(store) as o:
        await ready(o)
        with pytest.raises(InvalidSettings, match="trigger_imbalanse"):
            await o.controller.acts.set_config(
                act(), {"budget.max_moves": "7", "gates.trigger_imbalanse": "1.2"}
            )
        assert (await o.controller.operators.get_config(""))["budget.max_moves"] != "7"
        await o.controller.acts.set_config(act(), {"budget.max_moves": "7"})
    async with office(store) as o:
        assert (await o.controller.operators.get_config(""))["budget.max_moves"] == "7"


async def test_a_halt_is_resumed_by_its_number_after_an_audit() -> None:
    async with office() as o:
        await ready(o)
        o.ranks[1].feed(RaiseHalt("slot 3 is corrupt"))
        await o.settle(3)
        (view,) = await o.controller.operators.status("")
        assert view.operation.halt.is_active
        plan = await o.controller.operators.plan(ANY)
        assert isinstance(plan, PlanView)
        with pytest.raises(PlanRejected, match="halt 1 stands: rank 1: slot 3 is corrupt"):
            await o.controller.acts.apply(act(), plan.plan.plan_id)
        with pytest.raises(DeploymentHalted, match="halt 1 does"):
            await o.controller.acts.resume(act(), 7)
        await o.controller.acts.resume(act(), 1)
        await o.settle(3)
        (view,) = await o.controller.operators.status("")
        assert not view.operation.halt.is_active


async def test_a_policy_that_fails_is_a_failed_plan_and_nothing_else() -> None:
    async with office() as o:
        await ready(o)
        o.runner.failure = PlannerFailed("policy broken raised ZeroDivisionError")
        with pytest.raises(PlannerFailed):
            await o.controller.operators.plan(ANY)
        (view,) = await o.controller.operators.status("")
        assert view.operation.planning.num_failed == 1
        assert "ZeroDivisionError" in view.operation.planning.last_error
        o.runner.failure = None
        assert isinstance(await o.controller.operators.plan(ANY), PlanView)


async def test_a_refused_report_is_counted_and_the_last_good_one_kept() -> None:
    async with office() as o:
        await ready(o)
        with pytest.raises(InvalidReport):
            o.report(SKEWED, steps=(30,))
        (view,) = await o.controller.operators.status("")
        assert view.window.rejected_reports == 1
        assert view.window.num_steps == 20


async def test_what_does_not_exist_is_named() -> None:
    async with office() as o:
        with pytest.raises(UnknownDeployment, match="none has registered"):
            await o.controller.operators.heat("", ())
        await ready(o)
        with pytest.raises(UnknownDeployment, match="tiny/a/serve/0/ep0"):
            await o.controller.operators.heat("other", ())
        with pytest.raises(UnknownPlan, match="no plan abcd"):
            await o.controller.operators.explain("", "abcd")
        request = PlanRequest(deployment="", policy="magic", layers=(), reason="", who="tester")
        with pytest.raises(UnknownPolicy, match="incremental"):
            await o.controller.operators.plan(request)


async def test_a_plan_needs_every_rank() -> None:
    async with office() as o:
        await ready(o)
        await o.links[1].closed()
        plan = await o.controller.operators.plan(ANY)
        assert isinstance(plan, PlanView)
        with pytest.raises(NotReady, match=r"\[1\]"):
            await o.controller.acts.apply(act(), plan.plan.plan_id)


async def test_history_tells_the_story_newest_first() -> None:
    async with office() as o:
        await ready(o)
        await o.controller.acts.rebalance(act(reason="hot"), ANY)
        await o.settle()
        view = await o.controller.operators.history("", 50)
        assert [entry.kind for entry in view.entries] == ["plan", "wave", "plan"]
        assert (view.entries[-1].who, "hot" in view.entries[-1].text) == ("tester", True)
        assert [entry.epoch for entry in view.entries] == [1, 1, 0]


async def test_the_machine_is_told_of_a_step_once_for_all_ranks_and_each_rank_shows_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with office() as o:
        await ready(o)
        (deployment,) = o.controller.registry.all()
        told: list[Event] = []
        offer = deployment.driver.offer

        def noted(event: Event) -> bool:
            told.append(event)
            return offer(event)

        monkeypatch.setattr(deployment.driver, "offer", noted)
        o.report(SKEWED, steps=(40, 50), first=40)
        assert [e.step for e in told if isinstance(e, RankStepped)] == [40, 50]
        await deployment.driver.ask(Ticked(0.0, 0.0))  # it comes after them
        (view,) = await o.controller.operators.status("")
        assert [rank.step for rank in view.ranks] == [50, 50]
        assert deployment.driver.state.membership is not None
        assert deployment.driver.state.membership.step() == 50


async def test_a_rank_that_reports_is_idle_no_more_also_where_its_step_was_told() -> None:
    async with office() as o:
        await ready(o)
        (deployment,) = o.controller.registry.all()
        await o.links[1].said(Idle(is_idle=True, step=45))
        o.report(SKEWED, steps=(50,), first=50)
        await deployment.driver.ask(Ticked(0.0, 0.0))
        assert deployment.driver.state.membership is not None
        assert not deployment.driver.state.membership.is_idle
