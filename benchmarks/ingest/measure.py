"""From a report's sending to its place in the window, 256 ranks, one core."""

import asyncio
import os
import tempfile
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from benchmarks.ingest.ranks import INTERVAL_S, Sent, report_all
from benchmarks.ingest.server import Arrivals, run
from benchmarks.ingest.shape import NUM_DEPLOYMENTS, NUM_RANKS, SENT_EVERY

__all__ = ["measure"]

_NUM_REPORTS = 3 * SENT_EVERY
_WARM_UP = 4
_START_S = 30.0
_END_S = 10.0


def measure() -> list[Figure]:
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
            here.send("begin")
            sent = asyncio.run(report_all(port, num_reports=_NUM_REPORTS, warm_up=_WARM_UP))
            here.send("end")
            arrivals: Arrivals = here.recv()
        finally:
            os.sched_setaffinity(0, cores)
            server.join(_END_S)
            if server.is_alive():
                server.kill()
                server.join(_END_S)
    return _figures(sent, arrivals)


def _figures(sent: Sent, arrivals: Arrivals) -> list[Figure]:
    arrived = sent.keys() & arrivals.at_s.keys()
    took_s = np.array([arrivals.at_s[key] - sent[key] for key in arrived])
    lost = len(sent) - len(took_s)
    seconds = (_WARM_UP + _NUM_REPORTS) * INTERVAL_S
    return [
        Figure("agents", float(NUM_DEPLOYMENTS * NUM_RANKS), ""),
        Figure("reports", float(len(sent)), ""),
        Figure("reports that did not reach a window", float(lost), "", 0.0),
        Figure("send to window, median", 1e3 * float(np.median(took_s)), "ms"),
        Figure("send to window, p99", 1e3 * float(np.quantile(took_s, 0.99)), "ms", 100.0),
        Figure("send to window, longest", 1e3 * float(took_s.max()), "ms"),
        Figure("share of one core used", arrivals.cpu_s / seconds, ""),
    ]
