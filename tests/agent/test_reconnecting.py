"""The agent connects again after any loss, and steps never depend on it."""

import logging
import time
from dataclasses import replace

import pytest

from eplb_service.domain.ids import Generation
from eplb_service.protocol.messages import (
    Accepted,
    Arm,
    RankPhase,
)
from eplb_service.protocol.rank_state import Offer, RaiseHalt
from tests.agent.fakes import INCARNATION, an_order, name_of, new_desk
from tests.agent.streets import (
    PACE,
    PATIENCE_S,
    FakeChannel,
    StuckChannel,
    running,
    welcome,
)
from worker_agent.agent.pace import Backoff, Pace


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


def test_streams_that_end_soon_after_their_welcome_are_opened_ever_more_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two processes that claim one rank would else push each other out many times a second."""
    caplog.set_level(logging.INFO, logger="worker_agent.agent.loop")
    pace = replace(PACE, first_backoff_s=0.01, max_backoff_s=0.08)
    with running(pace=pace) as rig:
        for lived_s in (0, 0, 0, 0, 0.08):
            stream = rig.channel.next()
            stream.hello()
            rig.desk.outbox.post(Accepted(name_of(an_order())))
            stream.say(welcome())
            assert isinstance(stream.heard(), Accepted), "it is said after the Welcome"
            rig.clock.advance(lived_s)
            stream.lose()
        rig.channel.next().hello()
    waits = [getattr(r, "again_in_s", None) for r in caplog.records if r.msg == "stream lost"]
    assert waits == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.005])


def test_a_refusal_is_warned_of_in_the_message_once_for_each_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running() as rig:
        for refusal in ("", "expert 3 twice", "expert 3 twice", "", "expert 4 twice"):
            stream = rig.channel.next()
            stream.hello()
            stream.refusal = refusal
            stream.lose()
        stream = rig.channel.next()
        stream.hello()
        stream.refusal = "expert 4 twice"
        stream.say(welcome())
        rig.eventually(lambda: rig.agent.await_welcome(0) is not None)
        stream.lose()
        rig.channel.next().hello()
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    start = "the controller refuses this rank, which serves on without it: "
    assert warned == [f"{start}expert {n} twice" for n in (3, 4, 4)]


def test_words_that_found_no_room_are_told_by_a_hello_on_a_new_stream() -> None:
    """A halt, say, that nobody asks about again."""
    with running(desk=new_desk(outbox_size=1)) as rig:
        stream = rig.channel.next()
        stream.hello()
        stream.say(welcome())
        rig.eventually(lambda: rig.agent.await_welcome(0) is not None)
        stream.has_room = False
        rig.steps.weights.ended.append(RaiseHalt("the mover's group is lost"))
        rig.desk.outbox.post(Accepted(name_of(an_order())))
        rig.steps.steps(1)
        assert rig.desk.outbox.num_dropped == 1
        rig.desk.bell.ring()
        assert rig.channel.next().hello().status.halt.is_active


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
    backoff.served(7.9)
    assert backoff.next_s() == pytest.approx(8 * expected, rel=1e-3)
    backoff.served(8)
    assert backoff.next_s() == pytest.approx(expected, rel=1e-3)
