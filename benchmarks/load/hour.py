"""An hour of load reports of one deployment, fed to its windows as fast as they are taken."""

import gc
import tracemalloc
from dataclasses import dataclass

from eplb.v1 import agent_pb2

from benchmarks.ingest.shape import NUM_RANKS, STEPS_PER_REPORT, Deployment
from eplb_service.domain.ids import Epoch
from eplb_service.domain.report import LoadReport
from eplb_service.load.group import Group, WindowTerms
from eplb_service.load.windows import LoadWindows
from eplb_service.wire.up import decode_up, encode_up

__all__ = ["Hour", "simulate"]

REPORTS_PER_HOUR = 7200


@dataclass(frozen=True, slots=True)
class Hour:
    """What an hour left behind."""

    num_reports: int
    """Of all ranks together."""
    held_bytes: int
    """At the end, as Python's allocators count."""
    grown_bytes: int
    """Since the first tenth of it: windows are full long before."""


def simulate(num_reports: int = REPORTS_PER_HOUR) -> Hour:
    """Feed so many reports of every rank."""
    deployment = Deployment(0)
    terms = WindowTerms(STEPS_PER_REPORT, interval_steps=5 * STEPS_PER_REPORT)
    windows = LoadWindows(_group(deployment), terms)
    first = 0
    tracemalloc.start()
    try:
        for number in range(1, num_reports + 1):
            said = encode_up(deployment.report(number)).SerializeToString()
            for rank in range(NUM_RANKS):
                # Each rank's report has memory of its own, as one that came over the network.
                report = decode_up(agent_pb2.UpMessage.FromString(said))
                assert isinstance(report, LoadReport)
                windows.add(report, rank)
            if number == num_reports // 10:
                first = _held_bytes()
        last = _held_bytes()
    finally:
        tracemalloc.stop()
    return Hour(num_reports * NUM_RANKS, last, last - first)


def _held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _group(deployment: Deployment) -> Group:
    return Group(
        epoch=Epoch(0),
        placement=deployment.placement,
        profiles=tuple(deployment.hello(rank).profile for rank in range(NUM_RANKS)),
        top_k=deployment.hello(0).shape.top_k,
    )
