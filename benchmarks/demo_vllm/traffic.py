"""Requests to a server, and how many of them were answered as vLLM alone answers them."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from benchmarks.demo_vllm.parts import Server

NUM_CLIENTS = 6


@dataclass(slots=True)
class Tally:
    """What became of the requests."""

    requests: int = 0
    identical: int = 0
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    failures: list[str] = field(default_factory=list[str])


class Traffic:
    """Client threads that ask the same prompts again and again."""

    def __init__(
        self, server: Server, prompts: Sequence[Sequence[int]], want: Sequence[Sequence[int]]
    ) -> None:
        self.tally = Tally()
        self._server = server
        self._pairs = list(zip(prompts, want, strict=True))
        self._numbers = count()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, name=f"client-{number}", daemon=True)
            for number in range(NUM_CLIENTS)
        ]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def require_health(self) -> None:
        """Count a failure if the server does not say, or not in time, that it is healthy."""
        if not self._server.is_healthy():
            with self.tally.lock:
                self.tally.failed += 1
                self.tally.failures.append("the server was not healthy")

    def end(self) -> Tally:
        """Let every request be answered, and return what became of them."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        return self.tally

    def _ask(self) -> None:
        while not self._is_over.is_set():
            prompt, want = self._pairs[next(self._numbers) % len(self._pairs)]
            try:
                got = self._server.complete(prompt, len(want))
            except Exception as error:  # noqa: BLE001  whatever it was, it is counted and told
                self._count(is_same=False, failure=repr(error))
            else:
                self._count(is_same=got == list(want), failure="")

    def _count(self, *, is_same: bool, failure: str) -> None:
        with self.tally.lock:
            self.tally.requests += 1
            self.tally.identical += is_same
            if failure:
                self.tally.failed += 1
                self.tally.failures.append(failure)
