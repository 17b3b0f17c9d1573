"""The agent's loop, on a thread of its own.

It speaks with the controller for one rank: greets, hears, sends what the step side
says, reports load, and tells when the group stands still. When it is late, frozen or
gone, steps go on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread

from eplb_service.clock import Clock
from eplb_service.protocol.messages import Welcome
from worker_agent.agent.hearing import Hearing
from worker_agent.agent.idle import IdleWatch
from worker_agent.agent.introduction import Introduction
from worker_agent.agent.pace import Backoff, Pace
from worker_agent.applier.desk import Desk
from worker_agent.ports.channel import ChannelPort, Stream, StreamLost
from worker_agent.reporter.reporter import Reporter

log = logging.getLogger(__name__)

HELD_UP_S = 0.05
"""Longest sleep while a word waits for room on the desk or on the street."""


@dataclass(frozen=True, slots=True, eq=False)
class Outside:
    """What the loop works with."""

    channel: ChannelPort
    clock: Clock
    chance: Callable[[], float]
    """A number in [0, 1), to spread the back-off."""


class Agent:
    """One rank's agent; start it once, stop it once."""

    def __init__(
        self, me: Introduction, desk: Desk, reporter: Reporter, outside: Outside, pace: Pace
    ) -> None:
        self._me = me
        self._desk = desk
        self._reporter = reporter
        self._outside = outside
        self._pace = pace
        self._backoff = Backoff(pace, outside.chance)
        self._hearing = Hearing(me, desk, reporter)
        self._idle = IdleWatch(desk, outside.clock, pace)
        self._welcomed = Event()
        self._is_stopping = Event()
        self._must_greet = False
        self._num_dropped = 0
        """Words that had found no room when Hello was said last."""
        self._refusal = ""
        """What the rank was refused with last."""
        self._welcomed_at_s: float | None = None
        """When the stream that is served, if one is, was welcomed."""
        self._thread = Thread(target=self._run, name="eplb-agent", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the loop; False if its thread has not ended in time (it is a daemon)."""
        self._is_stopping.set()
        self._desk.bell.ring()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def await_welcome(self, timeout_s: float) -> Welcome | None:
        """Return the first Welcome, waiting at most so long. For the start, before any step."""
        self._welcomed.wait(timeout_s)
        return self._hearing.welcome

    def greet_again(self) -> None:
        """Say Hello on a new stream, since what is served changed without a wave."""
        self._must_greet = True
        self._desk.bell.ring()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._speak_on_one_stream()
            except StreamLost as lost:
                self._tell_of_refusal(lost)
                wait_s = self._next_wait_s()
                log.info("stream lost", extra={"cause": str(lost), "again_in_s": wait_s})
                self._is_stopping.wait(wait_s)
            except Exception:  # one bad word must not leave the rank without an agent
                log.exception("stream given up")
                self._is_stopping.wait(self._next_wait_s())

    def _tell_of_refusal(self, lost: StreamLost) -> None:
        """Warn of a refusal once for each text, in the message for those who see no fields."""
        if self._welcomed_at_s is not None:
            self._refusal = ""
        if lost.refusal and lost.refusal != self._refusal:
            log.warning(
                "the controller refuses this rank, which serves on without it: %s", lost.refusal
            )
        self._refusal = lost.refusal or self._refusal

    def _next_wait_s(self) -> float:
        """Return the wait before the next stream; it begins anew after one that lasted."""
        welcomed_at_s, self._welcomed_at_s = self._welcomed_at_s, None
        if welcomed_at_s is not None:
            self._backoff.served(self._outside.clock.monotonic_s() - welcomed_at_s)
        return self._backoff.next_s()

    def _speak_on_one_stream(self) -> None:
        """Serve one stream from Hello to its end."""
        stream = self._outside.channel.open(self._desk.bell.ring)
        try:
            self._greet(stream)
            self._await_welcome(stream)
            while self._goes_on():
                self._hearing.hear(stream)
                self._require_every_word()
                is_held_up = not self._tell(stream) or self._hearing.is_held_up
                self._desk.bell.wait(HELD_UP_S if is_held_up else self._pace.poll_s)
        finally:
            stream.close()

    def _goes_on(self) -> bool:
        return not (self._is_stopping.is_set() or self._must_greet)

    def _greet(self, stream: Stream) -> None:
        """Say Hello; what still waits to be said is told by its status."""
        self._must_greet = False
        self._num_dropped = self._desk.outbox.num_dropped
        self._hearing.restart()
        self._desk.outbox.clear()
        stream.send(self._me.hello(self._desk.snapshot, is_idle=self._idle.is_idle))

    def _require_every_word(self) -> None:
        """Raise StreamLost if a word found no room: only a new Hello tells what it said."""
        if self._desk.outbox.num_dropped > self._num_dropped:
            raise StreamLost(endpoint="the controller", cause="words found no room on it")

    def _await_welcome(self, stream: Stream) -> None:
        """Say nothing more until the controller has answered. Raises StreamLost if it is late."""
        clock = self._outside.clock
        deadline_s = clock.monotonic_s() + self._pace.welcome_within_s
        while self._goes_on():
            if self._hearing.hear(stream):
                self._welcomed_at_s = clock.monotonic_s()
                self._welcomed.set()
                return
            if clock.monotonic_s() >= deadline_s:
                raise StreamLost(endpoint="the controller", cause="no Welcome came in time")
            self._desk.bell.wait(self._pace.poll_s)

    def _tell(self, stream: Stream) -> bool:
        """Send what waits; False if the street has no room for all of it."""
        if not self._idle.tell(stream):
            return False
        while (word := self._desk.outbox.peek()) is not None:
            if not stream.send(word):
                return False
            self._desk.outbox.take()
        return all(stream.send(report) for report in self._reporter.unsent())
