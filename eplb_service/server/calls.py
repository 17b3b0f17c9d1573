"""How one call runs: it answers or ends with a status, and what it began is never cut in half."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from eplb_service.domain.errors import EplbError
from eplb_service.server.status import Call, end_with

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FINISH_S = 10.0
"""How long work may go on after its client left."""


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

    A cancellation is held back until the work is done, at most FINISH_S seconds; what the work
    raised then is logged, since nobody is left to tell.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        await _finish(task)
        raise
    return task.result()


async def _finish(task: asyncio.Task[Result]) -> None:
    """Let a task end, whatever else is cancelled meanwhile."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + FINISH_S
    while not task.done() and loop.time() < give_up_at:
        # Client gone, stream replaced, server stopped: each cancels once more.
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=give_up_at - loop.time())
    if not task.done():
        task.cancel()
        log.error("work did not end after its client left", extra={"limit_s": FINISH_S})
    elif not task.cancelled() and (error := task.exception()) is not None:
        code = error.code if isinstance(error, EplbError) else EplbError.code
        log.warning("work failed after its client left", exc_info=error, extra={"code": code})
