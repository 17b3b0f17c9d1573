"""From a report's sending to its place in the window, 256 ranks, one core."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from benchmarks.ingest.ranks import INTERVAL_S, Sent, report_all
from benchmarks.ingest.server import Arrivals, run
from benchmarks.ingest.shape import K3, NUM_DEPLOYMENTS, SENT_EVERY, Size

__all__ = ["measure"]

_NUM_REPORTS = 3 * SENT_EVERY
_WARM_UP = 4
MIB = 1 << 20
OTHERS = "time that others kept the core"
"""While the controller could have run: what is late then says little of it."""
_START_S = 30.0
_END_S = 10.0


Beside = Callable[[int], AbstractAsyncContextManager[None]]
"""What else happens at the controller meanwhile; it is given the port."""


def _nothing(_port: int) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def _report(port: int, beside: Beside, report: Callable[[int], Awaitable[Sent]]) -> Sent:
    async with beside(port):
        return await report(port)


def measure(
    num_deployments: int = NUM_DEPLOYMENTS,
    *,
    num_reports: int = _NUM_REPORTS,
    size: Size = K3,
    beside: Beside = _nothing,
) -> list[Figure]:
    """Run the server on one core and all agents on another, if there is one."""
    cores = sorted(os.sched_getaffinity(0))
    context = get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="eplb-ingest-") as folder:
        here, there = context.Pipe()
        server = context.Process(target=run, args=(cores[0], Path(folder), there))
        server.start()
        there.close()
        try:
            if not here.poll(_START_S):
                raise RuntimeError(f"the controller did not lead within {_START_S:.0f} s")
            port: int = here.recv()
            os.sched_setaffinity(0, {cores[-1]})
            report = partial(
                report_all,
                num_reports=num_reports,
                warm_up=_WARM_UP,
                num_deployments=num_deployments,
                size=size,
                on_connected=lambda: here.send("begin"),
            )
            sent = asyncio.run(_report(port, beside, report))
            here.send("end")
            arrivals: Arrivals = here.recv()
        finally:
            os.sched_setaffinity(0, cores)
            server.join(_END_S)
            if server.is_alive():
                server.kill()
                server.join(_END_S)
    return _figures(sent, arrivals, num_deployments * size.num_ranks)


def _figures(sent: Sent, arrivals: Arrivals, num_agents: int) -> list[Figure]:
    arrived = sent.keys() & arrivals.at_s.keys()
    took_s = np.array([arrivals.at_s[key] - sent[key] for key in arrived])
    lost = len(sent) - len(took_s)
    price_s = arrivals.cpu_s / max(1, len(arrivals.at_s))
    return [
        Figure("agents", float(num_agents), ""),
        Figure("reports", float(len(sent)), ""),
        Figure("reports that did not reach a window", float(lost), "", 0.0),
        Figure("send to window, median", 1e3 * float(np.median(took_s)), "ms"),
        Figure("send to window, p99", 1e3 * float(np.quantile(took_s, 0.99)), "ms", 100.0),
        Figure("send to window, longest", 1e3 * float(took_s.max()), "ms"),
        Figure("share of one core used", arrivals.cpu_s / arrivals.seconds, ""),
        Figure("CPU time of a report", 1e6 * price_s, "us"),
        Figure("share of one core that they need", price_s * num_agents / INTERVAL_S, "", 1.0),
        Figure(OTHERS, arrivals.waited_s / arrivals.seconds, ""),
        Figure("resident memory", arrivals.resident_bytes / MIB, "MiB"),
        Figure("resident memory grown since the first report", arrivals.grown_bytes / MIB, "MiB"),
    ]
