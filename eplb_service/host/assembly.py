"""One controller process: settings in, everything plugged together, run until fenced."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from eplb_service.controller.auditing import AuditedActs, Auditor
from eplb_service.controller.leading import Leading
from eplb_service.controller.ports import PlanRunner
from eplb_service.controller.registry import Tools
from eplb_service.controller.shell import Controller
from eplb_service.controller.watched_store import WatchedBook
from eplb_service.domain.directory import Directory
from eplb_service.domain.errors import EplbError, StoreUnavailable
from eplb_service.domain.metric_names import BUILD_INFO
from eplb_service.host.locks import locks_of
from eplb_service.host.sweeping import swept_seldom
from eplb_service.host.system_clock import SystemClock
from eplb_service.metrics import MetricsServer, PrometheusRecorder
from eplb_service.policies.kernels.library import require_built
from eplb_service.server.serving import ControllerServer, Desks, ServerOptions
from eplb_service.settings.doors import has_page, has_reflection, require_locked_doors
from eplb_service.settings.settings import Settings
from eplb_service.settings.tree import DirectorySettings
from eplb_service.settings.tuner import SettingsTuner
from eplb_service.store import open_store
from eplb_service.web import Feed, PageApp

PACKAGE = "eplb-control-plane"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running controller is found."""

    endpoint: str
    """host:port of gRPC, for ranks and operators."""
    metrics_url: str
    pid: int
    """Of the process that serves, for those who must end it by its own."""


class Service:
    """A controller with its server, store and metrics."""

    def __init__(self, settings: Settings, runner: PlanRunner) -> None:
        """Plug everything together.

        Raises InvalidSettings for open doors, for keys that cannot be read, and where the package
        was installed without its compiled loops.
        """
        require_built()
        require_locked_doors(settings)
        self._settings = settings
        self._recorder = PrometheusRecorder()
        self._recorder.set(BUILD_INFO, (version(PACKAGE),), 1)
        self._store = open_store(settings.store.url, deadline_s=settings.store.deadline_s)
        leading = Leading(**settings.leading.model_dump())
        tools = Tools(
            self._store,
            SystemClock(),
            self._recorder,
            SettingsTuner(settings),
            leading,
            _directory_of(settings.directory),
        )
        self._runner = runner
        self._controller = Controller(tools, archive=self._store, runner=runner)
        controller = self._controller
        book = WatchedBook(self._store, controller.watch)
        auditor = Auditor(book, tools.clock)
        self._server = ControllerServer(
            Desks(
                controller.ranks,
                controller.operators,
                AuditedActs(controller.acts, auditor),
                controller.operators,
                book,
            ),
            self._recorder,
            ServerOptions(
                host=settings.server.host,
                port=settings.server.port,
                has_reflection=has_reflection(settings),
            ),
            locks_of(settings.security, auditor.refused),
        )

    async def run(self, on_ready: Callable[[Addresses], None]) -> None:
        """Bind, lead and serve until cancelled, fenced or told to leave; all is closed at the end.

        Raises BindFailed at once when an address is taken, and NotLeader once another
        controller has taken over.
        """
        async with swept_seldom():
            await self._run(on_ready)

    async def _run(self, on_ready: Callable[[Addresses], None]) -> None:
        server = self._settings.server
        feed = Feed(self._controller.page, asyncio.get_running_loop())
        page = PageApp(feed) if has_page(self._settings) else None
        metrics = MetricsServer(
            self._recorder,
            host=server.metrics_host,
            port=server.metrics_port,
            has_experts=server.expert_metrics,
            page=page,
        )
        has_led = False
        try:
            port = await self._server.start()
            found = Addresses(
                endpoint=f"{server.host}:{port}",
                metrics_url=f"http://{server.metrics_host}:{metrics.port}/metrics",
                pid=os.getpid(),
            )

            async def leading() -> None:
                nonlocal has_led
                has_led = True
                await self._server.lead(is_leading=True)
                log.info("serving", extra={"endpoint": found.endpoint})
                on_ready(found)

            await self._controller.run(leading)
        except BaseExceptionGroup as group:
            named = _first_named(group)
            if isinstance(named, StoreUnavailable) and not has_led:
                named = _not_started(named, self._settings.store.url)
            raise named from group
        finally:
            feed.closed.set()
            await self._server.stop()
            await asyncio.to_thread(metrics.close)
            await asyncio.to_thread(self._store.close)
            self._runner.close()

    def leave(self) -> bool:
        """Have `run` return once nothing is in flight; False where this one does not lead."""
        return self._controller.leave(self._settings.server.finish_s)


def _directory_of(settings: DirectorySettings) -> Directory:
    entries = tuple((entry.deployments, entry.endpoint) for entry in settings.entries)
    return Directory(settings.mine, entries)


def _not_started(away: StoreUnavailable, url: str) -> StoreUnavailable:
    """Say what a store that cannot be used means before anything was served."""
    see = "server, user and password" if url.startswith("redis") else "file and folder"
    return StoreUnavailable(
        away.text,
        f"the controller does not start without its store: see to the {see} that store.url "
        "names, then start it again. Ranks that run already serve on as they do",
    )


def _first_named(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the failure with a name that a task group wrapped, else the group itself."""
    named = group.subgroup(EplbError)
    while isinstance(named, BaseExceptionGroup):
        named = named.exceptions[0]
    return named or group
