"""Where ranks come in: Hello, words, reports, and the end of a stream."""

from contextlib import suppress

from eplb_service.clock import Clock
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.machine_state import RankGreeted, RankLeft, RankSaid, RankStepped
from eplb_service.controller.ports import Outbox, Recorder
from eplb_service.controller.refusals import Refusals
from eplb_service.controller.registry import Registry
from eplb_service.controller.views import RefusalView
from eplb_service.domain.errors import InvalidReport, NotLeader, RegistrationRefused, StaleMessage
from eplb_service.domain.ids import Incarnation
from eplb_service.domain.metric_names import DIGEST_MISMATCHES, REPORTS_REJECTED, STREAMS_OPENED
from eplb_service.domain.report import LoadReport
from eplb_service.protocol.messages import Dropped, DropReason, Hello, ReportAck, Word


class Reception:
    """A desk.RankDesk over the registry."""

    def __init__(self, registry: Registry, *, clock: Clock, recorder: Recorder) -> None:
        self._registry = registry
        self._clock = clock
        self._recorder = recorder
        self._refusals = Refusals(clock)

    async def hello(self, hello: Hello, outbox: Outbox) -> "Link":
        """Register a rank and welcome it; raises RegistrationRefused, StaleMessage, NotLeader."""
        try:
            deployment = await self._registry.deployment_of(hello)
            await deployment.driver.ask(RankGreeted(hello), outbox)
        except (RegistrationRefused, StaleMessage) as refused:
            self._refusals.add(hello, refused)
            raise
        self._refusals.lift(hello)
        self._recorder.add(STREAMS_OPENED, (deployment.name,), 1)
        if not deployment.is_counting_what_is_served():
            deployment.recount()
        return Link(deployment, hello, outbox, clock=self._clock, recorder=self._recorder)

    def refused(self, deployment: str) -> tuple[RefusalView, ...]:
        """Ranks that were refused and ask again."""
        return self._refusals.told(deployment)


class Link:
    """A desk.RankLink: one open stream of one rank."""

    def __init__(
        self,
        deployment: Deployment,
        hello: Hello,
        outbox: Outbox,
        *,
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self._deployment = deployment
        self._rank = hello.profile.rank
        self._incarnation: Incarnation = hello.incarnation
        self._outbox = outbox
        self._clock = clock
        self._recorder = recorder

    async def said(self, word: Word) -> None:
        """Handle a word of the protocol."""
        if isinstance(word, Dropped) and word.reason is DropReason.DIGEST_MISMATCH:
            self._recorder.add(DIGEST_MISMATCHES, (self._deployment.name,), 1)
        await self._deployment.driver.ask(
            RankSaid(self._rank, self._incarnation, word), self._outbox
        )

    def reported(self, report: LoadReport) -> None:
        """Take a load report; raises InvalidReport, after counting it, when it is refused."""
        deployment, rank = self._deployment, self._rank
        self._tell_step(report.step)
        windows = deployment.windows
        if windows is None:
            return
        try:
            self._require_current(deployment.counted_incarnation)
            windows.add(report, rank)
        except InvalidReport as refused:
            deployment.num_rejected += 1
            self._recorder.add(REPORTS_REJECTED, (deployment.name, refused.reason), 1)
            raise
        is_migrating = deployment.driver.state.flight is not None
        deployment.meter.tally.add(report, rank, is_migrating=is_migrating)
        deployment.heard_at_s[rank] = self._clock.monotonic_s()
        if report.is_closing:
            generation = deployment.driver.errands.generation
            self._outbox.send(ReportAck(generation, self._incarnation, report.epoch))

    def _tell_step(self, step: int) -> None:
        """Tell the machine how far the group is, once for all its ranks, and who is idle no more.

        A step that finds no room now is told by the next report.
        """
        deployment, told = self._deployment, (self._incarnation, step)
        meter = deployment.meter
        membership = deployment.driver.state.membership
        member = membership.members[self._rank] if membership else None
        is_idle = member is not None and member.status.is_idle
        if told <= meter.told_step and not is_idle:
            return
        if deployment.driver.offer(RankStepped(self._rank, *told)):
            meter.told_step = max(meter.told_step, told)

    def _require_current(self, counted: Incarnation) -> None:
        if self._incarnation != counted:
            raise InvalidReport(
                f"rank {self._rank} reported for incarnation {self._incarnation}, but {counted} "
                "is counted; the counts were not used",
                reason="incarnation",
            )

    async def closed(self) -> None:
        """The stream ended."""
        driver = self._deployment.driver
        if driver.errands.disconnect(self._rank, self._outbox):
            with suppress(NotLeader):  # a controller that ends keeps no book of who left
                await driver.ask(RankLeft(self._rank, self._incarnation))
