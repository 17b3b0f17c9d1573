"""A street to a controller that a test plays, and an agent on it."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from eplb_service.clock import ManualClock
from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.protocol.messages import (
    Down,
    Hello,
    Up,
    Welcome,
)
from tests.agent.fakes import INCARNATION, ME, OLD, StepRig, new_desk
from worker_agent.agent.loop import Agent, Outside
from worker_agent.agent.pace import Pace
from worker_agent.applier.desk import Desk
from worker_agent.ports.channel import StreamLost
from worker_agent.reporter.cuts import Cadence, Cutter
from worker_agent.reporter.reporter import Reporter

PACE = Pace(poll_s=0.02, first_backoff_s=0.01, max_backoff_s=0.02)
PATIENCE_S = 10.0


def welcome(generation: int = 1, incarnation: Incarnation = INCARNATION) -> Welcome:
    return Welcome(
        generation=Generation(generation),
        incarnation=incarnation,
        epoch=Epoch(0),
        placement=OLD,
        shares=even_shares(OLD, Ownership.OWN),
        report_every_steps=5,
        sent_every_reports=3,
    )


class FakeStream:
    """Meets Stream; what is sent can be read, what is to come is put in."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring
        self.up: SimpleQueue[Up] = SimpleQueue()
        self.down: SimpleQueue[Down] = SimpleQueue()
        self.is_lost = False
        self.refusal = ""
        self.has_room = True

    def send(self, word: Up) -> bool:
        if self.is_lost:
            raise self._lost()
        if self.has_room:
            self.up.put(word)
        return self.has_room

    def receive(self) -> Down | None:
        try:
            return self.down.get_nowait()
        except Empty:
            if self.is_lost:
                raise self._lost() from None
            return None

    def _lost(self) -> StreamLost:
        return StreamLost(endpoint="fake", cause="pulled out", refusal=self.refusal)

    def close(self) -> None:
        self.is_lost = True

    def say(self, *words: Down) -> None:
        for word in words:
            self.down.put(word)
        self.ring()

    def lose(self) -> None:
        self.is_lost = True
        self.ring()

    def heard(self) -> Up:
        return self.up.get(timeout=PATIENCE_S)

    def hello(self) -> Hello:
        word = self.heard()
        assert isinstance(word, Hello)
        return word


class FakeChannel:
    """Meets ChannelPort."""

    def __init__(self) -> None:
        self.streams: SimpleQueue[FakeStream] = SimpleQueue()
        self.is_unreachable = False
        self.num_tries = 0

    def open(self, ring: Callable[[], None]) -> FakeStream:
        self.num_tries += 1
        if self.is_unreachable:
            raise StreamLost(endpoint="fake", cause="nobody answers")
        stream = FakeStream(ring)
        self.streams.put(stream)
        return stream

    def next(self) -> FakeStream:
        return self.streams.get(timeout=PATIENCE_S)


class StuckChannel(FakeChannel):
    """Freezes the thread that opens a stream until it is thawed."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.thawed = threading.Event(), threading.Event()

    def open(self, ring: Callable[[], None]) -> FakeStream:
        self.entered.set()
        self.thawed.wait(PATIENCE_S)
        return super().open(ring)


class Rig:
    """An agent and a step side, sharing a desk."""

    def __init__(self, channel: FakeChannel, desk: Desk, pace: Pace) -> None:
        self.channel, self.desk, self.clock = channel, desk, ManualClock()
        self.steps = StepRig(desk=desk)
        self.cutter = Cutter(self.steps.engine, Cadence(100, 1), desk.bell.ring)
        reporter = Reporter(self.cutter, incarnation=INCARNATION)
        self.agent = Agent(ME, desk, reporter, Outside(channel, self.clock, lambda: 0.0), pace)

    def eventually(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        woken = threading.Event()
        while not is_so():
            assert time.monotonic() < deadline_s, "it never came to pass"
            woken.wait(0.005)


@contextmanager
def running(
    channel: FakeChannel | None = None, *, desk: Desk | None = None, pace: Pace = PACE
) -> Generator[Rig]:
    rig = Rig(channel or FakeChannel(), desk or new_desk(), pace)
    rig.agent.start()
    try:
        yield rig
    finally:
        assert rig.agent.stop(PATIENCE_S)
