"""How one call runs: it answers or ends with a status, and what it began is never cut in half."""

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import TypeVar

from eplb_service.domain.errors import EplbError
from eplb_service.server.status import Call, end_with

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Answering:
    """Around the body of a call: a failure in it ends the call with its status."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def __aenter__(self) -> None:
        """Begin."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the call where the body failed; a cancelled call has nobody to tell."""
        if isinstance(error, Exception):
            await end_with(self._call, error)


async def to_the_end(work: Coroutine[None, None, Result]) -> Result:
    """Await work that must not be cut in half when the client goes away.

    A cancellation is held back until the work is done; what it raised then is logged, since
    nobody is left to tell.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            code = error.code if isinstance(error, EplbError) else EplbError.code
            log.warning("work failed after its client left", exc_info=error, extra={"code": code})
        raise
