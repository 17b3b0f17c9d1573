"""Desks that remember what they were asked, and answer or fail as told."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eplb_service.controller.desk import ActRequest, MapRequest, PlanRequest
from eplb_service.controller.ports import Outbox
from eplb_service.controller.views import (
    HeatView,
    HistoryView,
    NothingView,
    PlanView,
    RefusalView,
    RunView,
    StatusView,
)
from eplb_service.domain.audit import AuditEntry, Happened
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.metric_names import Metric
from eplb_service.domain.report import LoadReport
from eplb_service.protocol.messages import Hello, Word
from tests.server import views
from tests.wire import words

Asked = tuple[object, ...]


@dataclass
class Counters:
    """A recorder that keeps what was added."""

    added: list[tuple[str, tuple[str, ...], float]] = field(default_factory=list)

    def set(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        raise NotImplementedError

    def add(self, metric: Metric, labels: Sequence[str], amount: float) -> None:
        self.added.append((metric.name, tuple(labels), amount))

    def observe(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        raise NotImplementedError

    def forget(self, metric: Metric, labels: Sequence[str]) -> None:
        raise NotImplementedError

    def keep_heat(self, deployment: str, tokens: FloatArray, load: FloatArray) -> None:
        raise NotImplementedError


class Link:
    """One rank's link; `wrong` is raised for every word, `wrong_report` for every report."""

    def __init__(self, desk: "Ranks", hello: Hello, outbox: Outbox) -> None:
        self.hello = hello
        self.outbox = outbox
        self.words: list[Word] = []
        self.reports: list[LoadReport] = []
        self.is_entered = asyncio.Event()
        self.is_closed = asyncio.Event()
        self.heard = asyncio.Condition()
        self._desk = desk

    async def said(self, word: Word) -> None:
        self.is_entered.set()
        if self._desk.slow is not None:
            await self._desk.slow.wait()
        if self._desk.wrong_word is not None:
            raise self._desk.wrong_word
        self.words.append(word)
        async with self.heard:
            self.heard.notify_all()

    def reported(self, report: LoadReport) -> None:
        if self._desk.wrong_report is not None:
            raise self._desk.wrong_report
        self.reports.append(report)

    async def closed(self) -> None:
        self.is_closed.set()

    async def until_said(self, count: int) -> list[Word]:
        """Wait until so many words came, and return them."""
        async with asyncio.timeout(5), self.heard:
            await self.heard.wait_for(lambda: len(self.words) >= count)
        return self.words


class Ranks:
    """The desk of ranks; welcomes everybody."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.wrong_hello: Exception | None = None
        self.wrong_word: Exception | None = None
        self.wrong_report: Exception | None = None
        self.slow: asyncio.Event | None = None
        self.slow_hello: asyncio.Event | None = None
        self.has_hello = asyncio.Event()
        self.refusals: tuple[RefusalView, ...] = ()
        self.close_after_turns: int | None = None
        """Close every stream so many turns of the event loop after its Hello."""

    def refused(self, deployment: str) -> tuple[RefusalView, ...]:
        return tuple(r for r in self.refusals if deployment in ("", r.deployment))

    async def hello(self, hello: Hello, outbox: Outbox) -> Link:
        if self.wrong_hello is not None:
            raise self.wrong_hello
        link = Link(self, hello, outbox)
        self.links.append(link)
        self.has_hello.set()
        if self.slow_hello is not None:
            await self.slow_hello.wait()
        outbox.send(words.a_welcome(generation=len(self.links)))
        if self.close_after_turns is not None:
            _close_later(outbox, self.close_after_turns)
        return link


def _close_later(outbox: Outbox, turns: int) -> None:
    if turns:
        asyncio.get_running_loop().call_soon(_close_later, outbox, turns - 1)
    else:
        outbox.close("closed by the desk")


class Operators:
    """All desks of operators; notes every question, and raises `wrong` where it is set."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.wrong: Exception | None = None
        self.gate: asyncio.Event | None = None
        """Acts wait for it, where set."""
        self.entered, self.applied = asyncio.Event(), asyncio.Event()
        self.answer: PlanView | NothingView = views.a_plan()
        self.heats: list[HeatView | Exception] = [views.a_heat()]
        """Answered in turn, the last one again and again."""
        self.audit_kept: tuple[AuditEntry, ...] = ()
        """The newest first."""
        self.told = views.a_history()
        self.ran = views.a_run()
        self.map_text = '{"moe_layer_count": 0}'
        self.statuses: tuple[StatusView, ...] = (views.a_status(), views.a_quiet_status())

    def _note(self, *asked: object) -> None:
        self.asked.append(asked)
        if self.wrong is not None:
            raise self.wrong

    async def status(self, deployment: str) -> tuple[StatusView, ...]:
        self._note("status", deployment)
        return self.statuses

    async def heat(self, deployment: str, layers: tuple[int, ...]) -> HeatView:
        self._note("heat", deployment, layers)
        found = self.heats.pop(0) if len(self.heats) > 1 else self.heats[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def plan(self, request: PlanRequest) -> PlanView | NothingView:
        self._note("plan", request)
        return self.answer

    async def explain(self, deployment: str, plan_id: str) -> PlanView:
        self._note("explain", deployment, plan_id)
        return views.a_plan()

    async def history(self, deployment: str, limit: int) -> HistoryView:
        self._note("history", deployment, limit)
        return self.told

    async def export(self, deployment: str, epoch: int) -> str:
        self._note("export", deployment, epoch)
        return self.map_text

    async def get_config(self, deployment: str) -> Mapping[str, str]:
        self._note("get_config", deployment)
        return {"gates.min_gain": "0.05"}

    async def audit(self, happened: Happened) -> AuditEntry:
        raise NotImplementedError

    async def audited(self, below: int, limit: int) -> tuple[AuditEntry, ...]:
        self._note("audited", below, limit)
        return tuple(entry for entry in self.audit_kept if not below or entry.number < below)[
            :limit
        ]

    async def run(self, deployment: str, plan_id: str) -> RunView:
        self._note("run", deployment, plan_id)
        return self.ran

    async def apply(self, act: ActRequest, plan_id: str) -> RunView:
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        self._note("apply", act, plan_id)
        self.applied.set()
        return views.a_run()

    async def rebalance(self, act: ActRequest, request: PlanRequest) -> PlanView | NothingView:
        self._note("rebalance", act, request)
        return self.answer

    async def abort(self, act: ActRequest, plan_id: str) -> RunView:
        self._note("abort", act, plan_id)
        return views.a_run()

    async def rollback(self, act: ActRequest, epoch: int | None) -> PlanView | NothingView:
        self._note("rollback", act, epoch)
        return self.answer

    async def freeze(self, act: ActRequest, seconds: float) -> StatusView:
        self._note("freeze", act, seconds)
        return views.a_status()

    async def drain(self, act: ActRequest, rank: int) -> PlanView | NothingView:
        self._note("drain", act, rank)
        return self.answer

    async def undrain(self, act: ActRequest, rank: int) -> PlanView | NothingView:
        self._note("undrain", act, rank)
        return self.answer

    async def resume(self, act: ActRequest, halt_number: int) -> StatusView:
        self._note("resume", act, halt_number)
        return views.a_status()

    async def set_config(self, act: ActRequest, values: Mapping[str, str]) -> Mapping[str, str]:
        self._note("set_config", act, dict(values))
        return values

    async def import_map(self, act: ActRequest, request: MapRequest) -> PlanView | NothingView:
        self._note("import_map", act, request)
        return self.answer
