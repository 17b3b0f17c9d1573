"""The verbs that change nothing; a dry run leaves a line in the history."""

from collections.abc import Mapping

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.desk import PlanRequest
from eplb_service.controller.drawing import Draw, Drawer, goal_of
from eplb_service.controller.looks import heat_view, run_view, status_view
from eplb_service.controller.plan_book import plan_view
from eplb_service.controller.planning import NothingToDo
from eplb_service.controller.ports import Archive
from eplb_service.controller.registry import Registry
from eplb_service.controller.teller import Teller
from eplb_service.controller.views import (
    HeatView,
    HistoryView,
    NothingView,
    PlanView,
    RunView,
    StatusView,
)
from eplb_service.domain.errors import InvalidRequest, UnknownEpoch
from eplb_service.domain.ids import Epoch
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import Cause, Origin


class Reading:
    """A desk.OperatorDesk and desk.RunDesk."""

    def __init__(
        self, registry: Registry, drawer: Drawer, teller: Teller, archive: Archive
    ) -> None:
        self._registry = registry
        self._drawer = drawer
        self._teller = teller
        self._archive = archive

    async def status(self, deployment: str) -> tuple[StatusView, ...]:
        """All deployments, or the one named."""
        self._registry.require_leading()
        clock = self._registry.tools.clock
        chosen = [self._registry.find(deployment)] if deployment else self._registry.all()
        now_s, wall_s = clock.monotonic_s(), clock.wall_s()
        return tuple(status_view(found, now_s=now_s, wall_s=wall_s) for found in chosen)

    async def heat(self, deployment: str, layers: tuple[int, ...]) -> HeatView:
        """Heat of the newest window."""
        return heat_view(self._registry.find(deployment), layers)

    async def plan(self, request: PlanRequest) -> PlanView | NothingView:
        """Draw, price and judge a plan; change nothing."""
        deployment = self._registry.find(request.deployment)
        draw = draw_of(deployment, request)
        return await draw_only(deployment, draw, self._drawer, self._teller)

    async def explain(self, deployment: str, plan_id: str) -> PlanView:
        """A plan that is still kept, with every gate that spoke."""
        found = self._registry.find(deployment)
        return plan_view(found.name, found.book.find(plan_id))

    async def history(self, deployment: str, limit: int) -> HistoryView:
        """What happened, newest first."""
        name = self._registry.find(deployment).name
        return HistoryView(name, await self._archive.history(name, limit))

    async def export(self, deployment: str, epoch: int) -> str:
        """The placement of an epoch (0: the served one) as expert-map JSON."""
        found = self._registry.find(deployment)
        return format_map(await self._placement(found, epoch), _model_layers(found))

    async def get_config(self, deployment: str) -> Mapping[str, str]:
        """Every setting that an operator may change, by dotted name, as JSON values."""
        found = self._registry.find(deployment)
        return self._registry.tools.tuner.shown(found.switches.overrides)

    async def run(self, deployment: str, plan_id: str) -> RunView:
        """How an applied plan stands."""
        found = self._registry.find(deployment)
        return run_view(found, found.book.find(plan_id))

    async def _placement(self, deployment: Deployment, epoch: int) -> Placement:
        if not epoch:
            return deployment.driver.state.serving.placement
        recorded = await self._archive.epoch(deployment.name, Epoch(epoch))
        if recorded is None:
            raise UnknownEpoch(
                f"epoch {epoch} of {deployment.name} is not on record; "
                "`eplbctl history` lists those that are"
            )
        return recorded[0].placement


async def draw_only(
    deployment: Deployment, draw: Draw, drawer: Drawer, teller: Teller
) -> PlanView | NothingView:
    """Draw, price, judge and keep a plan; nothing changes but that the history tells of it."""
    found = await drawer.draw(deployment, draw)
    if isinstance(found, NothingToDo):
        return NothingView(deployment.name, found.reason, found.text)
    price, verdict = found.plan.price, found.verdict
    text = f"dry run, nothing changed: plan {verdict.answer}, {price.num_moves} moves"
    cause = draw.cause
    teller.note(deployment, "plan", f"{text}; {cause.reason}", found.plan.plan_id, who=cause.who)
    return plan_view(deployment.name, found)


def draw_of(deployment: Deployment, request: PlanRequest) -> Draw:
    """Translate an operator's wish; raises InvalidRequest for layers that do not exist."""
    terms = deployment.tuning.planning
    num_layers = deployment.driver.state.serving.placement.num_layers
    wrong = [layer for layer in request.layers if not 0 <= layer < num_layers]
    if wrong:
        raise InvalidRequest(
            f"layer {wrong[0]} does not exist; {deployment.name} has MoE layers 0 to "
            f"{num_layers - 1}; nothing was planned"
        )
    seed = int(deployment.driver.state.highest_epoch)
    goal = goal_of(terms, policy=request.policy, seed=seed)
    cause = Cause(Origin.AUTOMATIC, request.reason or "asked for", name_of(request.who))
    return Draw(goal, request.layers, cause)


def name_of(who: str) -> str:
    """Name of a person who asked, who may not have said it."""
    return who or "unknown"


def _model_layers(deployment: Deployment) -> tuple[int, ...]:
    membership = deployment.driver.state.membership
    assert membership is not None
    return membership.shape.layers
