"""The agent's thread: greets, hears and tells, and holds up what finds no room."""

import time
from dataclasses import replace

from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.report import LoadReport
from eplb_service.protocol.messages import (
    Accepted,
    Arm,
    Idle,
    NackReason,
    ReportAck,
    Staged,
)
from eplb_service.protocol.rank_state import Offer
from tests.agent.fakes import INCARNATION, OLD, an_order, name_of, new_desk
from tests.agent.streets import (
    PACE,
    running,
    welcome,
)
from worker_agent.reporter.cuts import Cadence


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


def test_the_first_step_after_a_rest_wakes_the_agent_from_a_long_sleep() -> None:
    with running(pace=replace(PACE, poll_s=60)) as rig:
        stream = rig.channel.next()
        stream.hello()
        stream.say(welcome())
        rig.eventually(lambda: rig.agent.await_welcome(0) is not None)
        rig.clock.advance(PACE.idle_after_s)
        rig.desk.bell.ring()
        assert stream.heard() == Idle(is_idle=True, step=0)
        rig.steps.steps(1)
        assert stream.heard() == Idle(is_idle=False, step=0)
