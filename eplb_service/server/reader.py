"""What one rank says after its Hello, word by word."""

import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

from eplb.v1 import agent_pb2

from eplb_service.controller.desk import RankLink
from eplb_service.controller.ports import Recorder
from eplb_service.domain.errors import InvalidReport, InvalidRequest
from eplb_service.domain.metric_names import REPORTS_REJECTED
from eplb_service.domain.report import LoadReport
from eplb_service.protocol.messages import Hello
from eplb_service.server.calls import to_the_end
from eplb_service.wire.up import decode_up

log = logging.getLogger(__name__)


class RankKey(NamedTuple):
    """Names one rank among all that a controller serves."""

    deployment: str
    rank: int


class RankReader:
    """Hands a rank's words and reports to its link.

    A report that is refused is counted and logged (once per reason and stream) and does not end
    the stream; anything else that is wrong does.
    """

    def __init__(self, key: RankKey, link: RankLink, recorder: Recorder) -> None:
        self._key = key
        self._link = link
        self._recorder = recorder
        self._told: set[str] = set()

    async def read(self, messages: AsyncIterator[agent_pb2.UpMessage]) -> None:
        """Read until the rank has no more to say."""
        async for message in messages:
            if message.WhichOneof("message") == "load_report":
                self._report(message)
            else:
                await self._word(message)
            del message  # not kept until the next one comes

    def _report(self, message: agent_pb2.UpMessage) -> None:
        """Hand a load report over."""
        try:
            report = decode_up(message)
        except InvalidReport as error:
            # The link never sees it, so that it is counted here.
            labels = (self._key.deployment, error.reason)
            self._recorder.add(REPORTS_REJECTED, labels, 1)
            self._refused(error)
            return
        assert isinstance(report, LoadReport), "a load_report decodes to nothing else"
        try:
            self._link.reported(report)
        except InvalidReport as error:
            self._refused(error)

    def _refused(self, error: InvalidReport) -> None:
        """Log a refusal, aloud only once."""
        level = logging.DEBUG if error.reason in self._told else logging.WARNING
        self._told.add(error.reason)
        fields = {**self._key._asdict(), "reason": error.reason, "text": str(error)}
        log.log(level, "report refused", extra=fields)

    async def _word(self, message: agent_pb2.UpMessage) -> None:
        """Hand a word of the protocol over."""
        word = decode_up(message)
        if isinstance(word, Hello | LoadReport):
            raise InvalidRequest(
                f"rank {self._key.rank} said Hello again; expected it only as the first word; "
                "the stream is closed"
            )
        await to_the_end(self._link.said(word))
