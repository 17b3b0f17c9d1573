"""From the page's threads to the controller's loop: few questions, whoever many ask.

However many pages are open, the loop is asked for the looks once in REFRESH_S, and for one
deployment's heat once in each window.
"""

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as TooLate
from threading import Event, Lock
from typing import TypeVar

from eplb_service.controller.page_desk import PageDesk
from eplb_service.domain.errors import DeadlineExceeded
from eplb_service.web.encode import heat_bytes, history_json, looks_json, plan_json

T = TypeVar("T")

REFRESH_S = 1.0
ANSWER_S = 5.0
"""Seconds that the loop has for one question."""


class Feed:
    """Answers in bytes; any thread may ask, until it is closed."""

    def __init__(self, desk: PageDesk, loop: asyncio.AbstractEventLoop) -> None:
        self._desk = desk
        self._loop = loop
        self._lock = Lock()
        self._looked_at_s = float("-inf")
        self._looks = b""
        self._heat_keys: dict[str, str] = {}
        self._heat: dict[str, tuple[str, bytes]] = {}
        self.closed = Event()

    def looks(self) -> bytes:
        """Every deployment, at most REFRESH_S old."""
        with self._lock:
            if time.monotonic() - self._looked_at_s >= REFRESH_S:
                looks = self._ask(self._desk.looks())
                self._heat_keys = {look.status.deployment: look.heat_key for look in looks}
                self._looks = looks_json(looks)
                self._looked_at_s = time.monotonic()
            return self._looks

    def heat(self, deployment: str) -> bytes:
        """Heat of the newest window that the looks told of."""
        self.looks()
        with self._lock:
            key = self._heat_keys.get(deployment)
            held = self._heat.get(deployment)
            if held is None or key is None or held[0] != key:
                found = heat_bytes(self._ask(self._desk.heat(deployment)))
                held = self._heat[deployment] = (key or "", found)
            return held[1]

    def plan(self, deployment: str, plan_id: str) -> bytes:
        """One plan, slot by slot."""
        return plan_json(self._ask(self._desk.plan(deployment, plan_id)))

    def history(self, deployment: str) -> bytes:
        """The newest lines of history."""
        return history_json(self._ask(self._desk.history(deployment)))

    def _ask(self, question: Coroutine[None, None, T]) -> T:
        answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return answer.result(ANSWER_S)
        except TooLate as late:
            answer.cancel()
            raise DeadlineExceeded(
                f"the controller did not answer the page within {ANSWER_S:.0f} s; ask again"
            ) from late
