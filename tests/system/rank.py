"""The process of one rank: serves granted steps, checks each, and tells what it saw.

Axes    L MoE layers   E experts   S local slots   T tokens   D model width
"""

import os
import signal
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from moe_runtime.runtime import (
    EMPTY,
    Batch,
    ByGate,
    DenseReference,
    ExchangeMode,
    GroupPeers,
    MoeRuntime,
    Phase,
    Scoring,
    SelectorSettings,
    SlotLayout,
    StackShape,
    Start,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
)
from tests.system.faults import Faults, FaultyChannel, FaultyMover, OlderChannel
from tests.system.words import (
    Command,
    Counted,
    Failed,
    FreezeAgent,
    Grant,
    HoldRounds,
    LoseArms,
    Steps,
    StepSeen,
    Stop,
    TellCounts,
)
from worker_agent.adapters.grpc_channel import GrpcChannel, Keepalive
from worker_agent.agent.hook import StepHook
from worker_agent.main import attach_over
from worker_agent.ports import engine
from worker_agent.ports.failures import RankMustEnd
from worker_agent.settings.settings import AgentSettings, DeploymentSettings, PaceSettings

NUM_RANKS = 4
NUM_EXPERTS = 16
LAYOUT = SlotLayout((6,) * NUM_RANKS)
SHAPE = StackShape(
    num_layers=2,
    width=16,
    intermediate=8,
    selector=SelectorSettings(num_experts=NUM_EXPERTS, top_k=2, scoring=Scoring.SIGMOID),
    activation=SwiGLU(),
)
STAGING_ROWS = 2
"""Few, so that a plan goes in many waves and epochs follow each other closely."""
AGREE_EVERY = 2
MODEL = "system"
TELL_EVERY = 10
PACE_S = 0.004
"""Least time from one step to the next: leaves room for the control plane on a small machine."""
PACE = PaceSettings(poll_s=0.05, first_backoff_s=0.05, max_backoff_s=0.5)
_GROUP_TIMEOUT_S = 60.0
_KINDS = {StepKind.REAL: engine.StepKind.REAL, StepKind.DUMMY: engine.StepKind.DUMMY}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's process belongs."""

    rank: int
    endpoint: str
    rendezvous: Path
    """A file that does not exist yet; the ranks find each other by it."""
    pace: PaceSettings
    is_older: bool = False
    """Whether its messages are those of the release before."""


def run(place: Place, supervisor: Connection) -> None:
    """Serve until told to stop, or until the supervisor is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=place.rendezvous.as_uri(),
            rank=place.rank,
            world_size=NUM_RANKS,
            timeout=timedelta(seconds=_GROUP_TIMEOUT_S),
        )
        _Rank(place, supervisor).serve()
    except (EOFError, BrokenPipeError):
        return  # nobody is left to serve for
    except (Exception, RankMustEnd):  # noqa: BLE001  whatever it was, the test tells it
        supervisor.send(Failed(place.rank, traceback.format_exc()))


class _Rank:
    def __init__(self, place: Place, supervisor: Connection) -> None:
        self._rank = place.rank
        self._supervisor = supervisor
        self._faults = Faults()
        self._runtime = MoeRuntime(
            SyntheticModel(SHAPE),
            flat_start(place.rank),
            peers=GroupPeers(),
            mode=ExchangeMode.ALL_TO_ALL,
        )
        self._reference = DenseReference(self._runtime.model)
        self._hook = _attach(self._runtime, place, self._faults)
        self._granted = 0
        self._step = 0
        self._seen: list[StepSeen] = []
        self._received_LE = np.zeros((SHAPE.num_layers, NUM_EXPERTS), dtype=np.int64)

    def serve(self) -> None:
        """Obey until Stop."""
        try:
            self._supervisor.send(Steps(self._rank, ()))  # attached
            while self._obey():
                slot_s = time.monotonic() + PACE_S
                self._seen.append(self._serve_step())
                self._step += 1
                if len(self._seen) >= TELL_EVERY or self._step == self._granted:
                    self._supervisor.send(Steps(self._rank, tuple(self._seen)))
                    self._seen.clear()
                time.sleep(max(0.0, slot_s - time.monotonic()))
        finally:
            self._faults.end()
            self._hook.close()

    def _obey(self) -> bool:
        """Take commands, and wait for more where no step is granted; False for Stop."""
        while self._step >= self._granted or self._supervisor.poll(0):
            command: Command = self._supervisor.recv()
            match command:
                case Grant(until):
                    self._granted = until
                case HoldRounds(is_on):
                    self._faults.holds_rounds = is_on
                case LoseArms(is_on):
                    self._faults.loses_arms = is_on
                case FreezeAgent(is_on):
                    self._faults.freeze(is_on=is_on)
                case TellCounts():
                    self._supervisor.send(self._counted())
                case Stop():
                    return False
        return True

    def _serve_step(self) -> StepSeen:
        batch = batch_of(self._step, self._rank)
        before_LS = self._runtime.counters().received_HLS.sum(axis=0)
        began_s = time.monotonic()
        self._hook.before_step()
        hooked_s = time.monotonic()
        y_TD = self._runtime.forward(batch)
        self._hook.after_step(_KINDS[batch.step.kind])
        ended_s = time.monotonic()
        self._fold(self._runtime.counters().received_HLS.sum(axis=0) - before_LS)
        state = self._hook.state()
        return StepSeen(
            step=self._step,
            seconds=ended_s - began_s,
            hook_seconds=hooked_s - began_s,
            error=self._error(batch, y_TD),
            num_tokens=batch.x_TD.shape[0],
            epoch=state.epoch,
            is_migrating=state.is_migrating,
            is_halted=state.is_halted,
        )

    def _error(self, batch: Batch, y_TD: torch.Tensor) -> float:
        """Largest error relative to a token's largest output; the norm's input is left out."""
        if not batch.x_TD.shape[0]:
            return 0.0
        want_TD = self._reference.forward(batch.x_TD, batch.router)
        off_T = (y_TD - want_TD).abs().amax(dim=1) / want_TD.abs().amax(dim=1)
        return float(off_T.max())

    def _fold(self, received_LS: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
        """Count what slots received for the experts that they held in this step."""
        for (layer, slot), expert in np.ndenumerate(self._runtime.held()):
            if expert != EMPTY:
                self._received_LE[layer, expert] += received_LS[layer, slot]
            else:
                assert not received_LS[layer, slot], "an empty slot received tokens"

    def _counted(self) -> Counted:
        counters = self._runtime.counters()
        return Counted(
            self._rank,
            sent=counters.sent_HLE.sum(axis=0).tolist(),
            received=self._received_LE.tolist(),
            tokens=int(counters.tokens_H.sum()),
            dummy_steps=int(counters.steps_G[StepKind.DUMMY]),
        )


def flat_start(rank: int) -> Start:
    """Slot p holds expert p modulo E; a rank uses the replica that its number picks."""
    base, num_slots = LAYOUT.base(rank), LAYOUT.slots_per_rank[rank]
    held_S = [slot % NUM_EXPERTS for slot in range(base, base + num_slots)]
    table_EJ: list[list[int]] = []
    for expert in range(NUM_EXPERTS):
        slots = range(expert, LAYOUT.num_slots, NUM_EXPERTS)
        table_EJ.append([slots[rank % len(slots)]])
    return Start(LAYOUT, [held_S] * SHAPE.num_layers, [table_EJ] * SHAPE.num_layers, STAGING_ROWS)


def batch_of(step: int, rank: int) -> Batch:
    """One step's tokens: idle ranks bring a dummy, some a real step without a token.

    Once in a while all four are idle.
    """
    turn = (step + rank) % 9
    if turn == 0 or step % 50 == 49:
        return Batch.dummy(SHAPE.width)
    phase = Phase.PREFILL if step % 3 == 0 else Phase.DECODE
    num_tokens = 0 if turn == 4 else 1 + (step + 3 * rank) % 6
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x_TD = torch.randn((num_tokens, SHAPE.width), generator=draw)
    return Batch.of(x_TD, ByGate(), Step(StepKind.REAL, phase))


def _attach(runtime: MoeRuntime, place: Place, faults: Faults) -> StepHook:
    settings = AgentSettings(
        endpoint=place.endpoint,
        deployment=DeploymentSettings(model=MODEL),
        agree_every=AGREE_EVERY,
        wait_for_welcome_s=30.0,
        group_timeout_s=_GROUP_TIMEOUT_S,
        pace=place.pace,
    )
    keepalive = Keepalive(
        every_s=settings.pace.keepalive_s, timeout_s=settings.pace.keepalive_timeout_s
    )
    street = GrpcChannel(place.endpoint, keepalive)
    channel = FaultyChannel(OlderChannel(street) if place.is_older else street, faults)
    return attach_over(runtime, channel, settings=settings, mover=FaultyMover.with_faults(faults))
