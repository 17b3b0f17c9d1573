"""From a report's sending to its place in the window, 256 ranks, one core."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.figures import Figure
from benchmarks.ingest.ranks import INTERVAL_S, Sent, report_all
from benchmarks.ingest.server import Arrivals, Ports, run, waited
from benchmarks.ingest.shape import K3, NUM_DEPLOYMENTS, SENT_EVERY, Size

__all__ = ["WARM_UP", "Controller", "Pipe", "controlled", "measure"]

_NUM_REPORTS = 3 * SENT_EVERY
WARM_UP = 4
"""Reports of each rank before the first that counts."""
MIB = 1 << 20
OTHERS = "time that others kept the core"
"""While the controller could have run: what is late then says little of it."""
OTHERS_OF_AGENTS = "time that others kept the agents' core"
"""While the agents, all in one process, could have sent: a report counts as sent before that."""
_START_S = 30.0
_END_S = 10.0


Beside = Callable[[int], AbstractAsyncContextManager[None]]
"""What else happens at the controller meanwhile; it is given the port."""


def _nothing(_port: int) -> AbstractAsyncContextManager[None]:
    return nullcontext()


class Pipe(Protocol):
    """An end of a multiprocessing.Pipe."""

    def poll(self, timeout: float = ...) -> bool:
        """Whether something can be read."""
        ...

    def send(self, obj: object, /) -> None:
        """Send anything."""
        ...

    def recv(self) -> Any:  # noqa: ANN401  what the other end sent
        """Read what the other end sent."""
        ...


class Controller:
    """One in a process and on a core of its own; the agents have another, if there is one."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        if not pipe.poll(_START_S):
            raise RuntimeError(f"the controller did not lead within {_START_S:.0f} s")
        self.ports: Ports = pipe.recv()
        self.arrivals = Arrivals()

    def begin(self) -> None:
        """The measurement begins."""
        self._pipe.send("begin")

    async def end(self, sent: Sent) -> None:
        """All reports are sent; returns once all have arrived, or are lost."""
        self._pipe.send(frozenset(sent))
        self.arrivals = await asyncio.to_thread(self._pipe.recv)


@contextmanager
def controlled() -> Generator[Controller]:
    """Run the controller on the first core; this process has the last one meanwhile."""
    cores = sorted(os.sched_getaffinity(0))
    context = get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="eplb-ingest-") as folder:
        here, there = context.Pipe()
        server = context.Process(target=run, args=(cores[0], Path(folder), there))
        server.start()
        there.close()
        try:
            controller = Controller(here)
            os.sched_setaffinity(0, {cores[-1]})
            yield controller
        finally:
            os.sched_setaffinity(0, cores)
            server.join(_END_S)
            if server.is_alive():
                server.kill()
                server.join(_END_S)


def measure(
    num_deployments: int = NUM_DEPLOYMENTS,
    *,
    num_reports: int = _NUM_REPORTS,
    size: Size = K3,
    beside: Beside = _nothing,
) -> list[Figure]:
    """Let all ranks report and ask the controller when each report was in its window."""

    async def reports(controller: Controller) -> Sent:
        async with beside(controller.ports.grpc):
            return await report_all(
                controller.ports.grpc,
                num_reports=num_reports,
                warm_up=WARM_UP,
                num_deployments=num_deployments,
                size=size,
                watch=controller,
            )

    with controlled() as controller:
        waited_s = waited()
        sent = asyncio.run(reports(controller))
        waited_s = waited() - waited_s
    arrivals = controller.arrivals
    return [
        *_figures(sent, arrivals, num_deployments * size.num_ranks),
        Figure(OTHERS_OF_AGENTS, waited_s / arrivals.seconds, ""),
    ]


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
