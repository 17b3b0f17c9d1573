"""A scraper in a process of its own, which is told for what to ask, and how often."""

import http.client
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

__all__ = ["Scrape", "Turn", "scrape"]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer."""

    path: str
    took_s: float
    num_bytes: int
    num_series: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What is asked for, again and again, until another turn begins."""

    paths: tuple[str, ...]
    every_s: float


def scrape(port: int, core: int, parent: Connection) -> None:
    """Take the turns that the parent sends; at the end, None, send every answer."""
    os.sched_setaffinity(0, {core})
    answers: list[Scrape] = []
    turn: Turn | None = parent.recv()
    while turn is not None:
        next_s = time.monotonic() + turn.every_s
        answers += [_ask(port, path) for path in turn.paths]
        rest_s = max(0.0, next_s - time.monotonic()) if turn.paths else None
        if parent.poll(rest_s):
            turn = parent.recv()
    parent.send(answers)


def _ask(port: int, path: str) -> Scrape:
    began_s = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    took_s = time.monotonic() - began_s
    connection.close()
    if answer.status != http.client.OK:
        raise RuntimeError(f"{path} was answered {answer.status}: {text[:200]!r}")
    num_series = sum(not line.startswith(b"#") for line in text.splitlines())
    return Scrape(path, took_s, len(text), num_series)
