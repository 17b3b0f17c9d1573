"""Kimi K3 on 64 ranks: reports while somebody scrapes, and what a scrape takes.

Turns follow each other in one run: nobody asks; somebody asks for metrics; for the heat of every
expert; for the same bytes as plain text. A machine that other work slows down slows all alike.
"""

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import get_context

import numpy as np

from benchmarks.figures import Figure
from benchmarks.ingest.measure import WARM_UP, Controller, Pipe, controlled
from benchmarks.ingest.plain import PLAIN, PLAIN_EXPERTS
from benchmarks.ingest.ranks import INTERVAL_S, Sent, report_all
from benchmarks.ingest.shape import K3, STEPS_PER_REPORT
from benchmarks.scrape.scraper import Scrape, Turn, scrape
from eplb_service.metrics.exposition import EXPERTS_PATH, PATH

__all__ = ["measure"]

_PER_TURN = 8
"""Reports of each rank in one turn."""
_QUIET = Turn((), 0.0)
_METRICS = Turn((PATH,), 0.1)
"""As ten servers do that each scrape every second; usual is one, every 15 to 60 seconds."""
_EXPERTS = Turn((EXPERTS_PATH,), 1.0)
_PLAIN = Turn((PLAIN, PLAIN_EXPERTS), 0.2)
_TURNS = (_QUIET, _METRICS, _EXPERTS, _PLAIN) * 4
_MOST_SERIES = 4 * K3.num_layers + 2 * K3.num_ranks + 60
"""By default: 4 of each layer, 2 of each rank, 60 others."""
_END_S = 10.0

Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]


def measure() -> list[Figure]:
    """Let 64 ranks report through all turns."""
    with controlled() as controller, _scraper(controller.ports.metrics) as pipe:
        turns = _Turns(controller, pipe)
        sent = asyncio.run(_report(controller, turns))
        answers = turns.answers
    lost = len(sent) - len(sent.keys() & controller.arrivals.at_s.keys())
    quiet = _latencies(sent, controller, _QUIET)
    return [
        Figure("reports", float(len(sent)), ""),
        Figure("reports that did not reach a window", float(lost), "", 0.0),
        Figure("send to window, median, nobody asks", _ms(np.median(quiet)), "ms"),
        Figure("send to window, p99, nobody asks", _ms(np.quantile(quiet, 0.99)), "ms"),
        *_delay("metrics asked for", _latencies(sent, controller, _METRICS), quiet, 2.0),
        *_delay("experts asked for", _latencies(sent, controller, _EXPERTS), quiet, 3.0),
        *_costs(answers, "metrics", PATH, PLAIN, 5.0),
        *_costs(answers, "experts", EXPERTS_PATH, PLAIN_EXPERTS, 3.0),
        Figure("metrics, series", float(_of(answers, PATH)[-1].num_series), "", _MOST_SERIES),
    ]


def _delay(name: str, asked: Seconds, quiet: Seconds, most: float) -> list[Figure]:
    """How much later reports are in their window while somebody asks."""
    late, early = float(np.quantile(asked, 0.99)), float(np.quantile(quiet, 0.99))
    median, before = float(np.median(asked)), float(np.median(quiet))
    return [
        Figure(f"{name}: median", _ms(median), "ms"),
        Figure(f"{name}: median over nobody's", median / before, "", most),
        Figure(f"{name}: p99 over nobody's", late / early, ""),
    ]


async def _report(controller: Controller, turns: "_Turns") -> Sent:
    """Report all the time, and let the scraper take its turns."""
    return await report_all(
        controller.ports.grpc,
        num_reports=len(_TURNS) * _PER_TURN,
        warm_up=WARM_UP,
        num_deployments=1,
        watch=turns,
    )


class _Turns:
    """Meets ingest.ranks.Watch: tells the scraper what to ask for when a turn begins."""

    def __init__(self, controller: Controller, pipe: Pipe) -> None:
        self._controller = controller
        self._pipe = pipe
        self._taken: asyncio.Task[None] | None = None
        self.answers: list[Scrape] = []

    def begin(self) -> None:
        """The first turn begins after the warm-up."""
        self._controller.begin()
        self._taken = asyncio.create_task(self._take())

    async def end(self, sent: Sent) -> None:
        """Every turn was taken; the scraper ends before the controller does."""
        assert self._taken is not None
        await self._taken
        self._pipe.send(None)
        self.answers = await asyncio.to_thread(self._pipe.recv)
        await self._controller.end(sent)

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time() + WARM_UP * INTERVAL_S
        for number, turn in enumerate(_TURNS):
            turn_s = begin_s + number * _PER_TURN * INTERVAL_S
            await asyncio.sleep(max(0.0, turn_s - loop.time()))
            self._pipe.send(turn)


def _latencies(sent: Sent, controller: Controller, kind: Turn) -> Seconds:
    """Seconds from sending to window in such turns, without the first report of each."""
    found: list[float] = []
    for key, at_s in sent.items():
        number, place = divmod(key.step // STEPS_PER_REPORT - WARM_UP - 1, _PER_TURN)
        arrived_s = controller.arrivals.at_s.get(key)
        if place and _TURNS[number] == kind and arrived_s is not None:
            found.append(arrived_s - at_s)
    return np.array(found)


def _costs(answers: list[Scrape], name: str, path: str, plain: str, most: float) -> list[Figure]:
    """What a path takes, beside as many bytes of plain text."""
    one, other = _of(answers, path), _of(answers, plain)
    took_s = float(np.median([answer.took_s for answer in one]))
    plain_s = float(np.median([answer.took_s for answer in other]))
    return [
        Figure(f"{name}: size", one[-1].num_bytes / 1024, "KiB"),
        Figure(f"{name}: scrape, median", _ms(took_s), "ms"),
        Figure(f"{name}: scrape over plain text", took_s / plain_s, "", most),
    ]


def _of(answers: list[Scrape], path: str) -> list[Scrape]:
    found = [answer for answer in answers if answer.path == path]
    if not found:
        raise RuntimeError(f"{path} was not answered once in its turns")
    return found


def _ms(seconds: float | np.floating) -> float:
    return 1e3 * float(seconds)


@contextmanager
def _scraper(port: int) -> Generator[Pipe]:
    """A scraper on this process's core."""
    context = get_context("spawn")
    here, there = context.Pipe()
    core = max(os.sched_getaffinity(0))
    process = context.Process(target=scrape, args=(port, core, there))
    process.start()
    there.close()
    try:
        yield here
    finally:
        process.join(_END_S)
        if process.is_alive():
            process.kill()
            process.join(_END_S)
