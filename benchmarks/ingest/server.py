"""A real controller on one core, whose desk for ranks notes when a report is in its window."""

import asyncio
import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.ingest.shape import SENT_EVERY, STEPS_PER_REPORT
from eplb_service.controller.desk import RankDesk, RankLink
from eplb_service.controller.ports import Outbox
from eplb_service.controller.registry import Tools
from eplb_service.controller.shell import Controller
from eplb_service.domain.report import LoadReport
from eplb_service.host.planner_process import ProcessPlanRunner
from eplb_service.host.system_clock import SystemClock
from eplb_service.metrics import PrometheusRecorder
from eplb_service.protocol.messages import Hello, Word
from eplb_service.server.serving import ControllerServer, Desks, ServerOptions
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import PlanningSettings, StoreSettings, WindowSettings
from eplb_service.settings.tuner import SettingsTuner
from eplb_service.store import open_store

__all__ = ["Arrivals", "ReportKey", "run"]


@dataclass(frozen=True, slots=True)
class ReportKey:
    """Names one report."""

    deployment: str
    rank: int
    step: int


@dataclass(slots=True)
class Arrivals:
    """What the server saw."""

    at_s: dict[ReportKey, float] = field(default_factory=dict[ReportKey, float])
    """Monotonic clock, once the report was checked and in its window."""
    cpu_s: float = 0.0
    seconds: float = 0.0
    """That the measurement took; longer than it should where the clients are late."""
    waited_s: float = 0.0
    """For a core that others used, while the main thread could have run."""
    resident_bytes: int = 0
    """Of the controller's process, at the end."""
    grown_bytes: int = 0
    """Since the measurement began."""
    num_rejected: int = 0


class NotingLink:
    """Meets RankLink: hands everything on, and notes when a report was taken."""

    def __init__(self, inner: RankLink, hello: Hello, arrivals: Arrivals) -> None:
        self._inner = inner
        self._name = hello.identity.name
        self._rank = hello.profile.rank
        self._arrivals = arrivals

    async def said(self, word: Word) -> None:
        """Hand on."""
        await self._inner.said(word)

    def reported(self, report: LoadReport) -> None:
        """Hand on, and note the time; a report that is refused is not noted."""
        self._inner.reported(report)
        key = ReportKey(self._name, self._rank, report.step)
        self._arrivals.at_s[key] = time.monotonic()

    async def closed(self) -> None:
        """Hand on."""
        await self._inner.closed()


class NotingDesk:
    """Meets RankDesk."""

    def __init__(self, inner: RankDesk, arrivals: Arrivals) -> None:
        self._inner = inner
        self._arrivals = arrivals

    async def hello(self, hello: Hello, outbox: Outbox) -> RankLink:
        """Hand on, with a link that notes."""
        return NotingLink(await self._inner.hello(hello, outbox), hello, self._arrivals)


def run(core: int, folder: Path, parent: Connection) -> None:
    """Serve on one core; send the port, then after a word from the parent what arrived."""
    os.sched_setaffinity(0, {core})
    asyncio.run(_serve(folder, parent))


def _settings(folder: Path) -> Settings:
    return Settings(
        store=StoreSettings(url=f"sqlite:///{folder / 'eplb.db'}"),
        planning=PlanningSettings(is_automatic=False),
        window=WindowSettings(
            report_every_steps=STEPS_PER_REPORT, sent_every_reports=SENT_EVERY, interval_steps=50
        ),
    )


async def _serve(folder: Path, parent: Connection) -> None:
    arrivals = Arrivals()
    settings = _settings(folder)
    store = open_store(settings.store.url, deadline_s=settings.store.deadline_s)
    recorder = PrometheusRecorder()
    tools = Tools(store, SystemClock(), recorder, SettingsTuner(settings))
    runner = ProcessPlanRunner()
    controller = Controller(tools, archive=store, runner=runner)
    desks = Desks(
        NotingDesk(controller.ranks, arrivals),
        controller.operators,
        controller.acts,
        controller.operators,
    )
    server = ControllerServer(desks, recorder, ServerOptions())
    port = await server.start()

    async def leading() -> None:
        parent.send(port)

    life = asyncio.create_task(controller.run(leading))
    await asyncio.to_thread(parent.recv)  # the measurement begins
    before_s, before_bytes = time.process_time(), resident()
    began_s, waited_s = time.monotonic(), waited()
    await asyncio.to_thread(parent.recv)  # and ends
    arrivals.cpu_s = time.process_time() - before_s
    arrivals.seconds = time.monotonic() - began_s
    arrivals.waited_s = waited() - waited_s
    arrivals.resident_bytes = resident()
    arrivals.grown_bytes = arrivals.resident_bytes - before_bytes
    arrivals.num_rejected = sum(d.num_rejected for d in controller.registry.all())
    parent.send(arrivals)
    life.cancel()
    await asyncio.wait({life})
    await server.stop()
    await asyncio.to_thread(store.close)
    runner.close()


def waited() -> float:
    """Seconds for which the main thread was ready and no core was free."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def resident() -> int:
    """Bytes of this process that lie in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
