"""Answers the page from what the controller holds."""

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.looks import heat_view, newest_window, status_view
from eplb_service.controller.page_desk import Look, PlacedHeat, PlanLine, PlanMap
from eplb_service.controller.plan_book import KeptPlan
from eplb_service.controller.ports import Archive
from eplb_service.controller.registry import Registry
from eplb_service.controller.views import HistoryView
from eplb_service.domain.heat import mean_with_data

NUM_LINES = 100
"""Of history."""


class PageReading:
    """A page_desk.PageDesk."""

    def __init__(self, registry: Registry, archive: Archive) -> None:
        self._registry = registry
        self._archive = archive

    async def looks(self) -> tuple[Look, ...]:
        """Every deployment, by name."""
        self._registry.require_leading()
        clock = self._registry.tools.clock
        now_s, wall_s = clock.monotonic_s(), clock.wall_s()
        return tuple(
            Look(
                status_view(found, now_s=now_s, wall_s=wall_s),
                _heat_key(found),
                tuple(_line(kept) for kept in found.book.newest_first()),
            )
            for found in self._registry.all()
        )

    async def heat(self, deployment: str) -> PlacedHeat:
        """Heat of all layers."""
        found = self._registry.find(deployment)
        return PlacedHeat(heat_view(found, ()), found.counted_placement)

    async def plan(self, deployment: str, plan_id: str) -> PlanMap:
        """A plan that is still kept, slot by slot."""
        found = self._registry.find(deployment)
        return _map(found, found.book.find(plan_id))

    async def history(self, deployment: str) -> HistoryView:
        """The newest lines."""
        name = self._registry.find(deployment).name
        return HistoryView(name, await self._archive.history(name, NUM_LINES))


def _heat_key(deployment: Deployment) -> str:
    window = newest_window(deployment)
    if window is None:
        return ""
    parts = (window.epoch, window.first_step, window.last_step, int(window.is_known.sum()))
    return ":".join(map(str, (deployment.counted_incarnation, *parts)))


def _line(kept: KeptPlan) -> PlanLine:
    plan, price = kept.plan, kept.plan.price
    return PlanLine(
        plan_id=plan.plan_id,
        policy=plan.policy,
        cause=plan.cause,
        phase=kept.phase.value,
        ending=kept.ending,
        drawn_at_s=kept.drawn_at_s,
        cost=(price.num_moves, price.num_bytes),
        imbalance=(mean_with_data(price.imbalance_before), mean_with_data(price.imbalance_after)),
    )


def _map(deployment: Deployment, kept: KeptPlan) -> PlanMap:
    waves = kept.plan.waves
    moves = [
        (layer, expert, source, target, number)
        for number, wave in enumerate(waves)
        for layer, expert, source, target in wave.content.transfers.tolist()
    ]
    layers = sorted({move[0] for move in moves})
    after = waves[-1].placement if waves else kept.base
    layout = kept.base.layout
    membership = deployment.driver.state.membership
    return PlanMap(
        layers=tuple(layers),
        model_layers=membership.shape.layers if membership else tuple(range(after.num_layers)),
        slot_starts=layout.starts(),
        before=kept.base.phy2log[layers],
        after=after.phy2log[layers],
        moves=tuple(moves),
        findings=kept.verdict.findings,
    )
