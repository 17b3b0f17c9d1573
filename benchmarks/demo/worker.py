"""The process of one rank: joins the group, then does what the supervisor says."""

import os
import signal
import time
import traceback
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.demo.agents import AgentHook
from benchmarks.demo.checker import Checker
from benchmarks.demo.engine import NoAgent, Rank, serve
from benchmarks.demo.model import SHAPE, flat_start
from benchmarks.demo.records import (
    Begin,
    Checked,
    Failed,
    Progress,
    Ready,
    SegmentDone,
    Serve,
    StepRecord,
    Stop,
)
from benchmarks.traffic import Traffic
from moe_runtime.runtime import (
    DenseReference,
    Device,
    ExchangeMode,
    MoeRuntime,
    SlotLayout,
    SyntheticModel,
    open_device,
    peers_of,
)
from worker_agent.ports.failures import RankMustEnd

__all__ = ["Place", "run"]

_SEED = 7
_GROUP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's process belongs."""

    rank: int
    layout: SlotLayout
    staging_rows: int
    rendezvous: Path
    """A file that does not exist yet; the ranks find each other by it."""
    device: str = "cpu"
    """Or npu: each rank computes on the NPU of its own number."""


def run(place: Place, supervisor: Connection) -> None:
    """Serve until told to stop, or until the supervisor is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        if supervisor.poll():  # nothing is said before Ready: the supervisor is gone
            return
        _join(place)
        supervisor.send(Ready(place.rank))
        _obey(place, supervisor)
    except (EOFError, BrokenPipeError):
        return  # nobody is left to serve for
    except (Exception, RankMustEnd):  # noqa: BLE001  the supervisor ends the run with it
        supervisor.send(Failed(place.rank, traceback.format_exc()))


def _join(place: Place) -> None:
    dist.init_process_group(
        "gloo",
        init_method=place.rendezvous.as_uri(),
        rank=place.rank,
        world_size=place.layout.num_ranks,
        timeout=timedelta(seconds=_GROUP_TIMEOUT_S),
    )


def _obey(place: Place, supervisor: Connection) -> None:
    reference = DenseReference(SyntheticModel(SHAPE))
    device = open_device("cpu" if place.device == "cpu" else f"{place.device}:{place.rank}")
    while True:
        command: Serve | Begin | Stop = supervisor.recv()
        if not isinstance(command, Serve):
            return
        _serve(_Set(place, device, reference), command, supervisor)
        supervisor.send(SegmentDone(place.rank))


@dataclass(frozen=True, slots=True, eq=False)
class _Set:
    """What a rank keeps from one segment to the next."""

    place: Place
    device: Device
    reference: DenseReference


def _serve(kept: _Set, command: Serve, supervisor: Connection) -> None:
    place = kept.place
    start = flat_start(place.layout, place.rank, staging_rows=place.staging_rows)
    runtime = MoeRuntime(
        SyntheticModel(SHAPE),
        replace(start, device=kept.device),
        peers=peers_of(kept.device),
        mode=ExchangeMode.ALL_TO_ALL,
    )
    traffic = Traffic(command.schedule, width=SHAPE.width, seed=_SEED)

    def tell(steps: tuple[StepRecord, ...], checks: tuple[Checked, ...]) -> None:
        if steps or checks:
            supervisor.send(Progress(place.rank, steps, checks))

    hook = NoAgent() if command.agent is None else AgentHook(runtime, command.agent)
    try:
        supervisor.send(Ready(place.rank))
        begin: Serve | Begin | Stop = supervisor.recv()
        if isinstance(begin, Begin):
            checker = Checker(kept.reference, time.monotonic)
            rank = Rank(place.rank, runtime, hook, checker, tell)
            serve(command, rank, traffic, begin.starts_at_s)
    finally:
        hook.close()
