"""The async shell around one deployment's machine: performs effects, keeps the order.

One task feeds the machine, so events of a deployment are handled one after the
other; an effect that must be durable is awaited before any later one is performed.
While the store does not answer nothing moves on here, and serving does not notice.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from eplb_service.controller.errands import Errands
from eplb_service.controller.machine import step, to_load
from eplb_service.controller.machine_state import (
    DeploymentState,
    Effect,
    Event,
    RankGreeted,
    RankLeft,
    RankSaid,
    Register,
)
from eplb_service.controller.ports import Outbox
from eplb_service.domain.errors import EplbError, NotLeader, StoreConflict
from eplb_service.protocol.messages import Hello

log = logging.getLogger(__name__)

QUEUE_BOUND = 8192


@dataclass(frozen=True, slots=True)
class Hooks:
    """Whom the driver tells what happened."""

    on_effect: Callable[[Effect, DeploymentState], None]
    on_fenced: Callable[[StoreConflict], None]


@dataclass(frozen=True, slots=True)
class _Letter:
    event: Event
    outbox: Outbox | None
    done: asyncio.Future[None]
    is_asked: bool
    """Whether somebody waits for the answer."""


class DeploymentDriver:
    """Drives one deployment; `run` is its task."""

    def __init__(self, state: DeploymentState, *, errands: Errands, hooks: Hooks) -> None:
        self.state = state
        self.errands = errands
        self._hooks = hooks
        self._letters: asyncio.Queue[_Letter] = asyncio.Queue(QUEUE_BOUND)
        self._is_over = False

    async def run(self) -> None:
        """Handle events until cancelled or fenced; who waits then hears NotLeader."""
        letter: _Letter | None = None
        try:
            while True:
                letter = await self._letters.get()
                try:
                    await self._handle(letter)
                except StoreConflict as fenced:
                    self._fail(letter, fenced)
                    self._hooks.on_fenced(fenced)
                    return
                if not letter.done.done():
                    letter.done.set_result(None)
        finally:
            self._end(letter)

    async def ask(self, event: Event, outbox: Outbox | None = None) -> None:
        """Hand in an event and wait until it and its effects are handled.

        Raises whatever the machine refuses the event with, and NotLeader once this
        controller handles nothing more.
        """
        done = asyncio.get_running_loop().create_future()
        letter = _Letter(event, outbox, done, is_asked=True)
        if not self._is_over:
            await self._letters.put(letter)
        if self._is_over:
            self._fail(letter, _over())
        await letter.done

    def offer(self, event: Event) -> bool:
        """Hand in an event whose loss a later one makes good; False where there was no room."""
        if self._is_over:
            return False
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(_collect)
        try:
            self._letters.put_nowait(_Letter(event, None, done, is_asked=False))
        except asyncio.QueueFull:
            return False
        return True

    @staticmethod
    def _fail(letter: _Letter, error: Exception) -> None:
        if not letter.done.done():
            letter.done.set_exception(error)

    def _end(self, current: _Letter | None) -> None:
        """Let nobody wait for what will never be handled."""
        self._is_over = True
        if current is not None:
            self._fail(current, _over())
        while not self._letters.empty():
            self._fail(self._letters.get_nowait(), _over())

    async def _handle(self, letter: _Letter) -> None:
        """Handle one event; only what happens after the state has changed may raise."""
        event, outbox = letter.event, letter.outbox
        if self._is_void(letter):
            return
        try:
            self.state, effects = step(self.state, event)
        except EplbError as refused:
            self._fail(letter, refused)
            return
        except Exception as fault:
            # A fault of ours, and nothing has changed: whoever asked hears of it, and the other
            # deployments go on. Where nobody asked, nobody would hear: let the controller end.
            if not letter.is_asked:
                raise
            log.exception("event failed", extra={"deployment": self.errands.deployment})
            self._fail(letter, fault)
            return
        pending = deque(effects)
        if isinstance(event, RankGreeted) and outbox is not None:
            # A new incarnation is on record before any of its ranks is told anything.
            while pending and isinstance(pending[0], Register):
                await self._perform(deque((pending.popleft(),)))
            self.errands.welcome(event.hello, outbox, to_load(self.state))
        await self._perform(pending)
        if isinstance(event, RankGreeted) and outbox is not None and letter.done.cancelled():
            await self._forget(event.hello, outbox)

    def _is_void(self, letter: _Letter) -> bool:
        """Whether a letter comes from a stream that is gone, or that a newer one replaced."""
        match letter.event:
            case RankGreeted():
                return letter.done.cancelled()
            case RankSaid(rank):
                outbox = letter.outbox
                return outbox is not None and not self.errands.is_current(rank, outbox)
            case _:
                return False

    async def _forget(self, hello: Hello, outbox: Outbox) -> None:
        """The stream ended while its Hello was handled: nobody will say so."""
        rank = hello.profile.rank
        if self.errands.disconnect(rank, outbox):
            self.state, effects = step(self.state, RankLeft(rank, hello.incarnation))
            await self._perform(deque(effects))

    async def _perform(self, pending: deque[Effect]) -> None:
        while pending:
            effect = pending.popleft()
            answer = await self.errands.perform(effect)
            self._hooks.on_effect(effect, self.state)
            if answer is not None:
                self.state, more = step(self.state, answer)
                pending.extendleft(reversed(more))


def _over() -> NotLeader:
    return NotLeader(
        "this controller leads no more; connect again, the leader answers on the same address"
    )


def _collect(done: asyncio.Future[None]) -> None:
    """Fetch the exception of an offered event, which nobody waits for."""
    if not done.cancelled() and done.exception() is not None:
        log.info("event refused", extra={"error": str(done.exception())})
