"""How many agents a controller holds: one report's price is measured, then queues are simulated.

A report's way through the controller has three parts: the street (gRPC and the event loop), parsing
(bytes into a report) and folding (checks, and its place in the window). They share one core, so a
report waits for all that came before it. All ranks of a deployment report at the same moment.
"""

import time
from dataclasses import dataclass

import numpy as np
from eplb.v1 import agent_pb2

from benchmarks.figures import Figure
from benchmarks.ingest.ranks import INTERVAL_S
from benchmarks.ingest.shape import NUM_RANKS, STEPS_PER_REPORT, Deployment
from eplb_service.domain.ids import Epoch
from eplb_service.load.group import Group, WindowTerms
from eplb_service.load.windows import LoadWindows
from eplb_service.wire.up import decode_up, encode_up

__all__ = ["Price", "figures", "price", "waits"]

AGENTS = (1024, 2048, 4096, 10_240)
CONTROLLERS = (1, 2, 4, 8, 16)
GOOD_S = 0.1
"""A report that waits no longer is as good as one that does not wait."""
_REPORTS = 40
_INTERVALS = 20


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of one core for one report of Kimi K3's shape."""

    street_s: float
    parse_s: float
    fold_s: float

    @property
    def whole_s(self) -> float:
        """All of it."""
        return self.street_s + self.parse_s + self.fold_s

    @property
    def bottleneck(self) -> str:
        """Name the dearest part."""
        parts = {"street": self.street_s, "parsing": self.parse_s, "folding": self.fold_s}
        return max(parts, key=lambda part: parts[part])


def price(whole_s: float) -> Price:
    """Measure the parts of one report's price.

    whole_s    seconds of the controller's core for a report, as measured over gRPC
    """
    deployment = Deployment(0)
    said = [
        encode_up(deployment.report(number)).SerializeToString()
        for number in range(1, _REPORTS + 1)
    ]
    began_s = time.process_time()
    for _ in range(NUM_RANKS):
        for text in said:
            decode_up(agent_pb2.UpMessage.FromString(text))
    parse_s = (time.process_time() - began_s) / (NUM_RANKS * _REPORTS)
    profiles = tuple(deployment.hello(rank).profile for rank in range(NUM_RANKS))
    top_k = deployment.size.top_k
    group = Group(epoch=Epoch(0), placement=deployment.placement, profiles=profiles, top_k=top_k)
    windows = LoadWindows(group, WindowTerms(STEPS_PER_REPORT, interval_steps=5 * STEPS_PER_REPORT))
    fold_s = 0.0
    for number in range(1, _REPORTS + 1):
        report = deployment.report(number)
        began_s = time.process_time()
        for rank in range(NUM_RANKS):
            windows.add(report, rank)
        fold_s += time.process_time() - began_s
    fold_s /= NUM_RANKS * _REPORTS
    return Price(max(0.0, whole_s - parse_s - fold_s), parse_s, fold_s)


def waits(num_agents: int, *, service_s: float, num_controllers: int = 1) -> float:
    """Return the time that one in a hundred reports exceeds until it is in its window.

    The deployments of 64 ranks are dealt out to controllers evenly; each controller's reports queue
    for one core. Infinite where reports come faster than they are taken.

    >>> waits(1024, service_s=1e-4) < waits(2048, service_s=1e-4) < waits(2048, service_s=4e-4)
    True
    """
    num_deployments = -(-num_agents // NUM_RANKS // num_controllers)
    if num_deployments * NUM_RANKS * service_s >= INTERVAL_S:
        return float("inf")
    offsets = np.arange(num_deployments) * INTERVAL_S / num_deployments
    starts = (np.arange(_INTERVALS)[:, None] * INTERVAL_S + offsets).ravel()
    arrivals = np.repeat(starts, NUM_RANKS)
    # When each is done: the latest, over all before it, of its arrival and what queued since.
    order = np.arange(1, len(arrivals) + 1)
    done = np.maximum.accumulate(arrivals - (order - 1) * service_s) + order * service_s
    return float(np.quantile(done - arrivals, 0.99))


def figures(whole_s: float) -> list[Figure]:
    """Measure a report's price, and say what it means for up to ten thousand agents."""
    found = price(whole_s)
    told = [
        Figure("a report's price: street", 1e6 * found.street_s, "us"),
        Figure("a report's price: parsing", 1e6 * found.parse_s, "us"),
        Figure("a report's price: folding", 1e6 * found.fold_s, "us"),
        Figure(
            f"bottleneck: the controller's one core, {found.bottleneck} most",
            INTERVAL_S / found.whole_s,
            "agents",
        ),
    ]
    for agents in AGENTS:
        enough = [
            number
            for number in CONTROLLERS
            if waits(agents, service_s=found.whole_s, num_controllers=number) <= GOOD_S
        ]
        told.append(
            Figure(f"{agents} agents, simulated: controllers", float(min(enough, default=0)), "")
        )
        if enough:
            p99_s = waits(agents, service_s=found.whole_s, num_controllers=enough[0])
            told.append(Figure(f"{agents} agents, simulated: p99", 1e3 * p99_s, "ms"))
    return told
