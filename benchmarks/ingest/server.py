"""A real controller on one core, whose desk for ranks notes when a report is in its window."""

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.ingest.plain import PlainText
from benchmarks.ingest.shape import SENT_EVERY, STEPS_PER_REPORT
from eplb_service.controller.desk import RankDesk, RankLink
from eplb_service.controller.ports import Outbox
from eplb_service.controller.registry import Tools
from eplb_service.controller.shell import Controller
from eplb_service.controller.views import RefusalView
from eplb_service.domain.report import LoadReport
from eplb_service.host.planner_process import ProcessPlanRunner
from eplb_service.host.sweeping import swept_seldom
from eplb_service.host.system_clock import SystemClock
from eplb_service.metrics import MetricsServer, PrometheusRecorder
from eplb_service.protocol.messages import Hello, Word
from eplb_service.server.serving import ControllerServer, Desks, ServerOptions
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import PlanningSettings, StoreSettings, WindowSettings
from eplb_service.settings.tuner import SettingsTuner
from eplb_service.store import open_store

__all__ = ["Arrivals", "Ports", "ReportKey", "run"]

ARRIVAL_S = 30.0
"""Longest that reports are waited for once all are sent; what comes later is lost."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the controller is."""

    grpc: int
    metrics: int


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


class Awaited:
    """Notes when reports are in their window, and tells when all that were sent are."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self._missing: set[ReportKey] = set()
        self._all_here = asyncio.Event()

    def note(self, key: ReportKey) -> None:
        """One is in its window."""
        self.arrivals.at_s[key] = time.monotonic()
        self._missing.discard(key)
        if not self._missing:
            self._all_here.set()

    async def wait_for(self, sent: frozenset[ReportKey], longest_s: float) -> None:
        """Wait until all are in their windows, or as long as is allowed."""
        self._missing = {key for key in sent if key not in self.arrivals.at_s}
        if self._missing:
            self._all_here.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_here.wait(), longest_s)


class NotingLink:
    """Meets RankLink: hands everything on, and notes when a report was taken."""

    def __init__(self, inner: RankLink, hello: Hello, awaited: Awaited) -> None:
        self._inner = inner
        self._name = hello.identity.name
        self._rank = hello.profile.rank
        self._awaited = awaited

    async def said(self, word: Word) -> None:
        """Hand on."""
        await self._inner.said(word)

    def reported(self, report: LoadReport) -> None:
        """Hand on, and note the time; a report that is refused is not noted."""
        self._inner.reported(report)
        self._awaited.note(ReportKey(self._name, self._rank, report.step))

    async def closed(self) -> None:
        """Hand on."""
        await self._inner.closed()


class NotingDesk:
    """Meets RankDesk."""

    def __init__(self, inner: RankDesk, awaited: Awaited) -> None:
        self._inner = inner
        self._awaited = awaited

    async def hello(self, hello: Hello, outbox: Outbox) -> RankLink:
        """Hand on, with a link that notes."""
        return NotingLink(await self._inner.hello(hello, outbox), hello, self._awaited)

    def refused(self, deployment: str) -> tuple[RefusalView, ...]:
        """Hand on."""
        return self._inner.refused(deployment)


def run(core: int, folder: Path, parent: Connection) -> None:
    """Serve on one core; send the ports; after all reports were named, send what arrived."""
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
    awaited = Awaited()
    settings = _settings(folder)
    store = open_store(settings.store.url, deadline_s=settings.store.deadline_s)
    recorder = PrometheusRecorder()
    tools = Tools(store, SystemClock(), recorder, SettingsTuner(settings))
    runner = ProcessPlanRunner()
    controller = Controller(tools, archive=store, runner=runner)
    desks = Desks(
        NotingDesk(controller.ranks, awaited),
        controller.operators,
        controller.acts,
        controller.operators,
    )
    server = ControllerServer(desks, recorder, ServerOptions())
    port = await server.start()
    plain = PlainText(recorder)
    metrics = MetricsServer(recorder, host="127.0.0.1", port=0, has_experts=True, page=plain)

    async def leading() -> None:
        parent.send(Ports(port, metrics.port))

    life = asyncio.create_task(controller.run(leading))
    async with swept_seldom():
        arrivals = await _measured(parent, awaited)
    arrivals.num_rejected = sum(d.num_rejected for d in controller.registry.all())
    parent.send(arrivals)
    life.cancel()
    await asyncio.wait({life})
    await server.stop()
    await asyncio.to_thread(metrics.close)
    await asyncio.to_thread(store.close)
    runner.close()


async def _measured(parent: Connection, awaited: Awaited) -> Arrivals:
    """What arrives between two words of the parent, and what it costs."""
    await asyncio.to_thread(parent.recv)  # the measurement begins
    before_s, before_bytes = time.process_time(), resident()
    began_s, waited_s = time.monotonic(), waited()
    sent: frozenset[ReportKey] = await asyncio.to_thread(parent.recv)  # and ends
    await awaited.wait_for(sent, ARRIVAL_S)
    arrivals = awaited.arrivals
    arrivals.cpu_s = time.process_time() - before_s
    arrivals.seconds = time.monotonic() - began_s
    arrivals.waited_s = waited() - waited_s
    arrivals.resident_bytes = resident()
    arrivals.grown_bytes = arrivals.resident_bytes - before_bytes
    return arrivals


def waited() -> float:
    """Seconds for which the main thread was ready and no core was free."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def resident() -> int:
    """Bytes of this process that lie in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
