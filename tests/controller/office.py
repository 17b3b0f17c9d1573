"""A whole controller in one process, with ranks that are only their protocol machines."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from eplb_service.controller.desk import ActRequest, RankLink
from eplb_service.controller.planning import NothingToDo, PlanningInput, draft
from eplb_service.controller.registry import Tools
from eplb_service.controller.sharing import Proposal, ShareTask, propose
from eplb_service.controller.shell import Controller
from eplb_service.domain.directory import Directory
from eplb_service.domain.ids import CountArray, FloatArray
from eplb_service.domain.metric_names import Metric
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import Plan
from eplb_service.domain.report import CountedUnder, LoadReport, Phase, SentCounts, StepCounts
from eplb_service.host.system_clock import SystemClock
from eplb_service.protocol.messages import Word
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import PlanningSettings, WindowSettings
from eplb_service.settings.tuner import SettingsTuner
from eplb_service.store.memory import MemoryStore
from tests.controller.ranks import FakeRank, agree, start_ranks, take_words

SETTINGS = Settings(
    planning=PlanningSettings(is_automatic=False),
    window=WindowSettings(report_every_steps=10, interval_steps=10, num_intervals=4),
)
TOP_K = 2
STEP_S = 0.04
NO_IDS = np.zeros(0, dtype=np.int32)
NO_COUNTS = np.zeros(0, dtype=np.int64)


class Figures:
    """A Recorder that can be read."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.heat: dict[str, FloatArray] = {}

    def set(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        self.values[metric.name, *labels] = value

    def add(self, metric: Metric, labels: Sequence[str], amount: float) -> None:
        key = (metric.name, *labels)
        self.values[key] = self.values.get(key, 0.0) + amount

    def observe(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        assert value >= 0
        self.add(metric, labels, 1)

    def forget(self, metric: Metric, labels: Sequence[str]) -> None:
        self.values.pop((metric.name, *labels), None)

    def keep_heat(self, deployment: str, tokens: FloatArray, load: FloatArray) -> None:
        assert len(load) == len(tokens)
        self.heat[deployment] = tokens


class HereRunner:
    """A PlanRunner that draws in this process, or fails as it is told."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    async def draw(self, task: PlanningInput, *, deadline_s: float) -> Plan | NothingToDo:
        assert deadline_s > 0
        if self.failure is not None:
            raise self.failure
        return draft(task)

    async def share(self, task: ShareTask, *, deadline_s: float) -> Proposal | None:
        assert deadline_s > 0
        return propose(task)

    def close(self) -> None:
        raise NotImplementedError


class Office:
    """The controller's desks and the ranks that have come to them."""

    def __init__(self, controller: Controller, figures: Figures, runner: HereRunner) -> None:
        self.controller = controller
        self.figures = figures
        self.runner = runner
        self.ranks: list[FakeRank] = []
        self.links: list[RankLink] = []

    async def register(
        self,
        placement: Placement,
        *,
        incarnation: int = 1,
        epoch: int = 0,
        sets_shares: bool = True,
    ) -> None:
        """Let a new rank group greet."""
        self.ranks = start_ranks(
            placement, incarnation=incarnation, epoch=epoch, sets_shares=sets_shares
        )
        self.links = [
            await self.controller.ranks.hello(rank.greeting(), rank) for rank in self.ranks
        ]

    def report(
        self,
        slot_tokens: CountArray,
        *,
        steps: Sequence[int] = (10, 20, 30),
        first: int = 0,
        step_s: float = STEP_S,
    ) -> None:
        """Every rank reports at each step; slot_tokens [L, P] are those of one interval.

        first    how many intervals were reported before
        step_s   seconds of a step, on the mean since the start
        """
        layout = self.ranks[0].placement.layout
        for number, step in enumerate(steps, start=first):
            total = slot_tokens * number
            for rank, link in enumerate(self.links):
                copies = total.sum(axis=1) if rank == 0 else np.zeros(len(total), dtype=np.int64)
                served = self.ranks[rank].state.served
                link.reported(
                    LoadReport(
                        under=CountedUnder(served.epoch, served.placement, served.revision),
                        phase=Phase.DECODE,
                        step=step,
                        reset=1,
                        is_closing=False,
                        received=np.ascontiguousarray(total[:, layout.slots_of(rank)]),
                        sent_total=copies,
                        sent=SentCounts(NO_IDS, NO_IDS, NO_COUNTS),
                        steps=step_counts(step, int(copies[0]) // TOP_K, step_s=step_s),
                    )
                )

    async def settle(self, agreements: int = 16) -> None:
        """Let the group agree and its words arrive, a few times."""
        for _ in range(agreements):
            said: list[tuple[int, Word]] = []
            take_words(self.ranks, lambda rank, word, out=said: out.append((rank, word)))
            for rank, word in said:
                await self.links[rank].said(word)
            agree(self.ranks)


def step_counts(step: int, tokens: int, *, step_s: float = STEP_S) -> StepCounts:
    return StepCounts(
        real=step,
        dummy=0,
        warmup=0,
        profile=0,
        tokens=tokens,
        padding_rows=0,
        overflow_tokens=0,
        step_seconds=step_s * step,
        expert_seconds=0.012 * step,
    )


def act(request_id: str = "", *, reason: str = "test") -> ActRequest:
    return ActRequest(deployment="", request_id=request_id, who="tester", reason=reason)


@asynccontextmanager
async def office(
    store: MemoryStore | None = None,
    settings: Settings = SETTINGS,
    directory: Directory | None = None,
) -> AsyncGenerator[Office]:
    """A controller that leads, until the block ends."""
    store, figures, runner = store or MemoryStore(), Figures(), HereRunner()
    tuner = SettingsTuner(settings)
    tools = Tools(store, SystemClock(), figures, tuner, directory=directory or Directory())
    controller = Controller(tools, archive=store, runner=runner)
    leads = asyncio.Event()

    async def leading() -> None:
        leads.set()

    life = asyncio.create_task(controller.run(leading))
    try:
        async with asyncio.timeout(5):
            await leads.wait()
        yield Office(controller, figures, runner)
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
