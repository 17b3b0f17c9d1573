"""What comes down a stream: checked here, and put on the desk for the step side.

While the desk has no room the word is held back and nothing more is taken, so that the
street fills up and the controller waits; nothing is lost.
"""

import logging

from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import Abort, Arm, Down, NewShares, ReportAck, Resume, Welcome
from eplb_service.protocol.rank_state import Offer
from worker_agent.agent.checks import order_fault, shares_fault
from worker_agent.agent.introduction import Introduction
from worker_agent.applier.desk import Checked, Desk
from worker_agent.ports.channel import Stream, StreamLost
from worker_agent.reporter.cuts import Cadence
from worker_agent.reporter.reporter import Reporter

log = logging.getLogger(__name__)


class Hearing:
    """Takes the controller's words for one rank."""

    def __init__(self, me: Introduction, desk: Desk, reporter: Reporter) -> None:
        self._me = me
        self._desk = desk
        self._reporter = reporter
        self._held_back: Checked | None = None
        self.welcome: Welcome | None = None
        """The first that came."""

    @property
    def is_held_up(self) -> bool:
        """Whether a word waits for room on the desk."""
        return self._held_back is not None

    def restart(self) -> None:
        """Forget what an ended stream brought; the next one brings it again."""
        self._held_back = None

    def hear(self, stream: Stream) -> bool:
        """Take words until none is left or the desk is full; True if one was a Welcome.

        Raises StreamLost, also for the Welcome of a controller that has been overtaken.
        """
        is_welcome = False
        while self._has_room() and (word := stream.receive()) is not None:
            is_welcome = self._take(word) or is_welcome
        return is_welcome

    def _has_room(self) -> bool:
        if self._held_back is not None:
            if self._desk.inbox.is_full:
                return False
            self._desk.inbox.post(self._held_back)
            self._held_back = None
        return True

    def _take(self, word: Down) -> bool:
        match word:
            case Welcome():
                return self._take_welcome(word)
            case ReportAck(_, incarnation, epoch):
                if incarnation == self._me.incarnation:
                    self._reporter.acknowledge(epoch)
            case Order():
                fault = order_fault(word, self._desk.snapshot.placement, self._me.limits)
                self._held_back = Offer(word, fault)
            case NewShares():
                self._take_shares(word)
            case Arm() | Abort() | Resume():
                self._held_back = word
        return False

    def _take_welcome(self, welcome: Welcome) -> bool:
        if welcome.incarnation != self._me.incarnation:
            return False
        seen = self._desk.snapshot.generation_seen
        if welcome.generation < seen:
            raise StreamLost(
                endpoint="the controller",
                cause=f"generation {welcome.generation} welcomed, but {seen} has been heard",
            )
        self._reporter.set_cadence(Cadence(welcome.report_every_steps, welcome.sent_every_reports))
        self.welcome = self.welcome or welcome
        log.info("welcomed", extra={"generation": welcome.generation, "epoch": welcome.epoch})
        return True

    def _take_shares(self, new: NewShares) -> None:
        now = self._desk.snapshot
        served = (now.status.served.epoch, now.status.served.placement)
        if (new.name.epoch, new.name.placement) != served:
            log.info("shares for another placement", extra={"epoch": new.name.epoch})
            return
        fault = shares_fault(new, now.placement, self._me.limits)
        if fault is not None:
            log.warning("shares refused", extra={"epoch": new.name.epoch, "fault": fault})
            return
        self._held_back = new
