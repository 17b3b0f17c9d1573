"""The agent's thread: greets, hears, tells, connects again; steps never depend on it."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import pytest

from eplb_service.clock import ManualClock
from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.report import LoadReport
from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.protocol.messages import (
    Accepted,
    Arm,
    Down,
    Hello,
    Idle,
    NackReason,
    RankPhase,
    ReportAck,
    Staged,
    Up,
    Welcome,
)
from eplb_service.protocol.rank_state import Offer
from tests.agent.fakes import INCARNATION, ME, OLD, StepRig, an_order, name_of, new_desk
from worker_agent.agent.loop import Agent, Outside
from worker_agent.agent.pace import Backoff, Pace
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
        self.has_room = True

    def send(self, word: Up) -> bool:
        if self.is_lost:
            raise StreamLost(endpoint="fake", cause="pulled out")
        if self.has_room:
            self.up.put(word)
        return self.has_room

    def receive(self) -> Down | None:
        try:
            return self.down.get_nowait()
        except Empty:
            if self.is_lost:
                raise StreamLost(endpoint="fake", cause="pulled out") from None
            return None

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


def test_the_first_word_is_hello_and_nothing_else_is_said_before_the_welcome() -> None:
    with running() as rig:
        stream = rig.channel.next()
        hello = stream.hello()
        assert (hello.incarnation, hello.profile.rank) == (INCARNATION, 0)
        assert hello.placement.digest() == hello.status.served.placement
        rig.desk.outbox.post(Staged(name_of(an_order())))
        rig.desk.bell.ring()
        time.sleep(0.1)
        assert stream.up.empty()
        stream.say(welcome())
        assert isinstance(stream.heard(), Staged)
        assert rig.agent.await_welcome(0) is not None


def test_an_order_is_checked_and_put_on_the_desk_and_its_answer_goes_up() -> None:
    with running() as rig:
        stream, order = rig.channel.next(), an_order()
        stream.hello()
        stream.say(welcome(), order)
        rig.eventually(lambda: rig.desk.inbox.peek() is not None)
        offer = rig.desk.inbox.peek()
        assert isinstance(offer, Offer)
        assert offer.fault is None
        rig.steps.steps(1)
        assert stream.heard() == Accepted(name_of(order))


def test_an_unsound_order_reaches_the_machine_with_its_fault() -> None:
    with running() as rig:
        stream, order = rig.channel.next(), an_order(old=OLD)
        stream.hello()
        rig.steps.steps(1)
        bad = type(order)(
            order.epoch,
            order.generation,
            order.incarnation,
            order.expires_at_step,
            order.content,
            order.dispatch[:, :, :0].copy(),
        )
        stream.say(welcome(), bad)
        rig.eventually(lambda: rig.desk.inbox.peek() is not None)
        rig.steps.steps(1)
        nack = stream.heard()
        assert getattr(nack, "reason", None) is NackReason.UNSOUND


def test_after_a_loss_hello_tells_again_what_the_lost_words_said() -> None:
    with running() as rig:
        stream, order = rig.channel.next(), an_order()
        stream.hello()
        stream.say(welcome(), order)
        rig.eventually(lambda: rig.desk.inbox.peek() is not None)
        rig.channel.is_unreachable = True
        stream.lose()
        rig.eventually(lambda: rig.channel.num_tries > 1)
        rig.steps.steps(4)
        assert rig.desk.outbox.peek() == Accepted(name_of(order))
        rig.channel.is_unreachable = False
        again = rig.channel.next()
        status = again.hello().status
        assert (status.phase, status.held) == (RankPhase.STAGED, name_of(order))
        again.say(welcome())
        again.say(Arm(Generation(1), INCARNATION, name_of(order)))
        rig.eventually(lambda: rig.desk.inbox.peek() is not None)
        rig.steps.steps(2)
        assert type(again.heard()).__name__ == "Armed"
        assert type(again.heard()).__name__ == "CutOver"


def test_a_full_desk_holds_the_street_up_and_loses_nothing() -> None:
    with running(desk=new_desk(inbox_size=2)) as rig:
        stream = rig.channel.next()
        stream.hello()
        arms = [Arm(Generation(1), INCARNATION, name_of(an_order(epoch=e))) for e in range(1, 30)]
        stream.say(welcome(), *arms)
        rig.eventually(lambda: rig.desk.inbox.is_full)
        taken: list[object] = []

        def drain() -> bool:
            while (word := rig.desk.inbox.take()) is not None:
                taken.append(word)
            return len(taken) == len(arms)

        rig.eventually(drain)
        assert taken == arms


def test_a_street_without_room_keeps_words_in_the_outbox() -> None:
    with running() as rig:
        stream = rig.channel.next()
        stream.hello()
        stream.say(welcome())
        rig.eventually(lambda: rig.agent.await_welcome(0) is not None)
        stream.has_room = False
        rig.desk.outbox.post(Staged(name_of(an_order())))
        rig.desk.bell.ring()
        time.sleep(0.1)
        stream.has_room = True
        assert isinstance(stream.heard(), Staged)


def test_reports_follow_the_welcomes_cadence() -> None:
    with running() as rig:
        stream = rig.channel.next()
        stream.hello()
        stream.say(welcome())
        rig.eventually(lambda: rig.cutter.cadence == Cadence(5, 3))
        served = rig.desk.snapshot.status.served
        for step in range(1, 8):
            rig.cutter.at_step(step, served, OLD)
        report = stream.heard()
        assert isinstance(report, LoadReport)
        assert report.step == 5


def test_an_ack_of_this_incarnation_stops_closing_totals() -> None:
    with running() as rig:
        stream = rig.channel.next()
        stream.hello()
        stream.say(welcome())
        rig.cutter.closing(3, rig.desk.snapshot.status.served, OLD)
        assert isinstance(stream.heard(), LoadReport)
        stream.heard()
        other = Incarnation(INCARNATION - 1)
        stream.say(ReportAck(Generation(1), other, Epoch(0)))
        stream.say(ReportAck(Generation(1), INCARNATION, Epoch(0)))
        rig.eventually(stream.down.empty)
        rig.eventually(lambda: rig.cutter.cadence.report_every_steps == 5)
        time.sleep(0.05)
        rig.cutter.at_step(5, rig.desk.snapshot.status.served, OLD)
        report = stream.heard()
        assert isinstance(report, LoadReport)
        assert not report.is_closing


def test_a_group_that_stands_still_is_told_to_be_idle_and_the_next_step_ends_it() -> None:
    with running() as rig:
        stream = rig.channel.next()
        stream.hello()
        stream.say(welcome())
        rig.steps.steps(3)
        rig.clock.advance(PACE.idle_after_s / 2)
        rig.eventually(lambda: rig.agent.await_welcome(0) is not None)
        time.sleep(0.1)
        assert stream.up.empty()
        rig.clock.advance(PACE.idle_after_s)
        assert stream.heard() == Idle(is_idle=True, step=2)
        rig.steps.steps(1)
        assert stream.heard() == Idle(is_idle=False, step=3)


def test_a_stream_without_a_welcome_is_given_up() -> None:
    with running() as rig:
        first = rig.channel.next()
        first.hello()
        rig.clock.advance(PACE.welcome_within_s)
        assert rig.channel.next().hello().incarnation == INCARNATION
        assert first.is_lost


def test_a_controller_that_has_been_overtaken_is_left() -> None:
    with running() as rig:
        stream, order = rig.channel.next(), an_order()
        stream.hello()
        newer = type(order)(
            order.epoch,
            Generation(7),
            order.incarnation,
            order.expires_at_step,
            order.content,
            order.dispatch,
        )
        stream.say(welcome(7), newer)
        rig.eventually(lambda: rig.desk.inbox.peek() is not None)
        rig.steps.steps(1)
        stream.lose()
        second = rig.channel.next()
        assert second.hello().generation_seen == 7
        second.say(welcome(6))
        assert rig.channel.next().hello().generation_seen == 7


def test_greeting_again_opens_a_new_stream_at_once() -> None:
    with running() as rig:
        stream = rig.channel.next()
        stream.hello()
        rig.agent.greet_again()
        rig.channel.next().hello()
        assert stream.is_lost


def test_an_unreachable_controller_is_tried_again_and_again() -> None:
    channel = FakeChannel()
    channel.is_unreachable = True
    with running(channel) as rig:
        rig.eventually(lambda: channel.num_tries >= 4)
        rig.steps.steps(200)
        assert rig.desk.steps_begun == 200


def test_two_hundred_steps_go_on_while_the_agents_thread_is_frozen() -> None:
    channel = StuckChannel()
    with running(channel) as rig:
        assert channel.entered.wait(PATIENCE_S)
        rig.desk.inbox.post(Offer(an_order(), None))
        started_s = time.monotonic()
        rig.steps.steps(200)
        took_s = time.monotonic() - started_s
        assert rig.desk.steps_begun == 200
        assert took_s < 2
        channel.thawed.set()
        status = rig.channel.next().hello().status
        assert (status.phase, status.step) == (RankPhase.STAGED, 198)


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 0.5), (0.999999, 1.0)])
def test_back_off_doubles_up_to_its_limit_between_half_and_whole(
    chance: float, expected: float
) -> None:
    backoff = Backoff(Pace(first_backoff_s=1, max_backoff_s=8), lambda: chance)
    waits = [backoff.next_s() for _ in range(6)]
    assert waits == pytest.approx([expected * limit for limit in (1, 2, 4, 8, 8, 8)], rel=1e-3)
    backoff.reset()
    assert backoff.next_s() == pytest.approx(expected, rel=1e-3)
