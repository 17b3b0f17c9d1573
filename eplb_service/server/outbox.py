"""The way down to one rank: a bounded queue between the controller and a stream's writer."""

import asyncio
from collections import deque

from eplb_service.protocol.messages import Down


class BoundedOutbox:
    """Holds words that the stream has not taken yet; belongs to the event loop's thread.

    Implements controller.ports.Outbox: `send` never blocks. A rank that does not read its words
    loses its stream when `limit` of them wait, and is told everything again after its next Hello.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting = deque[Down]()
        self._filled = asyncio.Event()
        self._closed = asyncio.Event()
        self._reason = ""
        self._ending = ""

    def send(self, message: Down) -> None:
        """Queue a word; a closed outbox drops it, and a full one closes."""
        if self._closed.is_set() or self._ending:
            return
        if len(self._waiting) >= self._limit:
            self.close(
                f"{self._limit} words wait and the rank takes none; the stream is closed, "
                "and the rank is told where it stands when it connects again"
            )
            return
        self._waiting.append(message)
        self._filled.set()

    def finish(self, reason: str) -> None:
        """End the stream once it has taken what waits; what is sent from now on is dropped."""
        self._ending = self._ending or reason
        self._filled.set()

    def close(self, reason: str) -> None:
        """End the stream; the first reason stays."""
        if not self._closed.is_set():
            self._reason = reason
            self._waiting.clear()
            self._closed.set()

    async def next(self) -> Down:
        """Wait for the next word."""
        while not self._waiting:
            if self._ending:
                self.close(self._ending)
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()

    async def closed(self) -> str:
        """Wait until the outbox is closed and return why."""
        await self._closed.wait()
        return self._reason
