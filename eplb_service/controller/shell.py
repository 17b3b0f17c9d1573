"""The controller: leads, ticks, plans and shows, until another controller fences it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from eplb_service.controller.acting import PlanVerbs
from eplb_service.controller.acts import Acts
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.draining import DrainVerbs
from eplb_service.controller.drawing import Drawer
from eplb_service.controller.gauges import show, show_controller
from eplb_service.controller.leaving import leave
from eplb_service.controller.machine_state import Ticked
from eplb_service.controller.page_reading import PageReading
from eplb_service.controller.planner import Planner
from eplb_service.controller.ports import Archive, PlanRunner
from eplb_service.controller.reading import Reading
from eplb_service.controller.reception import Reception
from eplb_service.controller.registry import Registry, Tools
from eplb_service.controller.rollcall import away, degraded
from eplb_service.controller.share_loop import ShareLoop
from eplb_service.controller.switching import SwitchVerbs
from eplb_service.controller.teller import Teller
from eplb_service.controller.watched_store import StoreWatch, WatchedStore
from eplb_service.domain.errors import NotLeader

log = logging.getLogger(__name__)

TICK_S = 0.25
SHOW_S = 1.0


class _Left(Exception):
    """The controller left, as it was told to."""


class Controller:
    """Plugs the desks together; `run` is its life."""

    def __init__(self, tools: Tools, *, archive: Archive, runner: PlanRunner) -> None:
        self.watch = StoreWatch(tools.recorder)
        tools = replace(tools, store=WatchedStore(tools.store, self.watch))
        self._tools = tools
        self._leaving: asyncio.Future[float] | None = None
        self._away: dict[str, tuple[int, ...]] = {}
        """Ranks that were away at the last look, by deployment."""
        self._teller = Teller(store=tools.store, clock=tools.clock)
        self.registry = Registry(tools, self._teller)
        drawer = Drawer(self.registry, self._teller, runner)
        self.planner = Planner(self.registry, self._teller, drawer)
        self.shares = ShareLoop(self.registry, self._teller, runner)
        self.ranks = Reception(self.registry, clock=tools.clock, recorder=tools.recorder)
        self.operators = Reading(self.registry, drawer, self._teller, archive)
        self.page = PageReading(self.registry, archive)
        self.acts = Acts(
            PlanVerbs(self.registry, drawer, self._teller, archive),
            SwitchVerbs(self.registry, self._teller),
            DrainVerbs(self.registry, drawer, self._teller),
        )

    def leave(self, finish_s: float) -> bool:
        """Have `run` return once nothing is in flight; False where this one does not lead.

        finish_s    seconds that running waves are given before they are withdrawn
        """
        if self._leaving is None or self._leaving.done() or not self.registry.generation:
            return False
        self._leaving.set_result(finish_s)
        return True

    async def run(self, on_leading: Callable[[], Awaitable[None]]) -> None:
        """Lead until told to leave; `on_leading` is awaited once it leads.

        Raises NotLeader once another controller has taken over.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._lead(tasks, on_leading)
        except* _Left:
            log.info("controller left")

    async def _lead(
        self, tasks: asyncio.TaskGroup, on_leading: Callable[[], Awaitable[None]]
    ) -> None:
        await self.registry.lead(tasks)
        self._leaving = asyncio.get_running_loop().create_future()
        tasks.create_task(self._teller.run(self.registry.step_down), name="history")
        tasks.create_task(self._tick(), name="ticks")
        planning = tasks.create_task(self.planner.run(tasks), name="planning")
        tasks.create_task(self.shares.run(tasks), name="shares")
        tasks.create_task(self._show(), name="gauges")
        fenced = tasks.create_task(self.registry.fenced.wait(), name="fence")
        await on_leading()
        await asyncio.wait({fenced, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
        if self._leaving.done():
            planning.cancel()
            leaves = tasks.create_task(
                leave(self.registry, self._tools.clock, finish_s=self._leaving.result())
            )
            await asyncio.wait({fenced, leaves}, return_when=asyncio.FIRST_COMPLETED)
        if not self.registry.fenced.is_set():
            raise _Left
        raise NotLeader(
            "another controller took over and fenced this one in the store; it says nothing "
            "more to any rank, and its process ends"
        )

    async def _tick(self) -> None:
        clock = self._tools.clock
        last_s = clock.monotonic_s()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = clock.monotonic_s()
            for deployment in self.registry.all():
                # Time that finds no room now is told by the next tick's absolute time.
                deployment.driver.offer(Ticked(now_s - last_s, clock.wall_s()))
            last_s = now_s

    async def _show(self) -> None:
        while True:
            show_controller(self.registry)
            await asyncio.sleep(SHOW_S)
            for deployment in self.registry.all():
                show(deployment, self._tools)
                self._call_the_roll(deployment)

    def _call_the_roll(self, deployment: Deployment) -> None:
        """Tell of ranks that are away at two looks in a row, and what only they hold."""
        state = deployment.driver.state
        gone = away(state.membership)
        text = degraded(state.serving.placement, gone)
        if (
            gone == self._away.get(deployment.name, ())
            and deployment.is_news(text, "away")
            and text
        ):
            self._teller.note(deployment, "failure", text)
        self._away[deployment.name] = gone
