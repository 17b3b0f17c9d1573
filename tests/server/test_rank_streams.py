"""The life of a rank's stream, over real gRPC."""

import asyncio
import logging

import grpc
import pytest
from eplb.v1 import agent_pb2

from eplb_service.domain.errors import (
    EplbError,
    InvalidReport,
    NotLeader,
    RegistrationRefused,
    StaleMessage,
)
from eplb_service.domain.ids import Generation, Incarnation
from eplb_service.domain.report import LoadReport
from eplb_service.protocol.messages import Idle, Resume, Welcome
from eplb_service.wire.up import encode_up
from tests.server.conftest import Served
from tests.server.rank_client import RankClient
from tests.wire import words
from tests.wire.plain import plain

Status = grpc.StatusCode


def a_report() -> LoadReport:
    report = words.a_report()
    assert isinstance(report, LoadReport)
    return report


def a_resume(number: int) -> Resume:
    return Resume(Generation(1), Incarnation(1), number)


async def test_a_hello_reaches_the_desk_and_is_answered(served: Served) -> None:
    hello = words.a_hello(rank=1)
    assert isinstance(await RankClient(served.channel).greet(hello), Welcome)
    assert plain(served.ranks.links[0].hello) == plain(hello)


async def test_words_go_both_ways_in_order(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    link = served.ranks.links[0]
    for step in range(5):
        await rank.say(Idle(is_idle=True, step=step))
        link.outbox.send(a_resume(step))
    assert await link.until_said(5) == [Idle(is_idle=True, step=step) for step in range(5)]
    assert [await rank.hear() for _ in range(5)] == [a_resume(step) for step in range(5)]


async def test_a_rank_that_has_no_more_to_say_ends_its_stream_well(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    await rank.call.done_writing()
    assert (await rank.end())[0] is Status.OK
    assert served.ranks.links[0].is_closed.is_set()


async def test_a_rank_that_goes_away_is_noticed(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    rank.call.cancel()
    async with asyncio.timeout(5):
        await served.ranks.links[0].is_closed.wait()


@pytest.mark.parametrize(
    "first", [Idle(is_idle=True, step=0), a_report(), None], ids=["word", "report", "nothing"]
)
async def test_a_stream_begins_with_hello(served: Served, first: Idle | LoadReport | None) -> None:
    rank = RankClient(served.channel)
    if first is None:
        await rank.call.done_writing()
    else:
        await rank.say(first)
    status, code, text = await rank.end()
    assert (status, code) == (Status.INVALID_ARGUMENT, "invalid_request")
    assert "expected Hello" in text
    assert not served.ranks.links


async def test_a_hello_that_makes_no_sense_ends_the_stream(served: Served) -> None:
    rank = RankClient(served.channel)
    message = encode_up(words.a_hello())
    message.hello.placement.phy2log.data = b"123"
    await rank.say_raw(message)
    status, code, text = await rank.end()
    assert (status, code) == (Status.INVALID_ARGUMENT, "invalid_table")
    assert "placement.phy2log has 3 bytes; expected 32" in text


async def test_a_message_without_a_word_ends_the_stream(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    await rank.say_raw(agent_pb2.UpMessage())
    assert (await rank.end())[:2] == (Status.INVALID_ARGUMENT, "invalid_request")
    assert served.ranks.links[0].is_closed.is_set()


async def test_a_second_hello_on_a_stream_ends_it(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    await rank.say(words.a_hello())
    status, _, text = await rank.end()
    assert status is Status.INVALID_ARGUMENT
    assert "rank 0 said Hello again" in text
    assert len(served.ranks.links) == 1


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (RegistrationRefused("rank 0 tells 3 experts; expected 4"), Status.FAILED_PRECONDITION),
        (StaleMessage("incarnation 1 is over; 2 runs"), Status.FAILED_PRECONDITION),
        (NotLeader("another controller leads"), Status.UNAVAILABLE),
    ],
)
async def test_a_rank_that_is_not_let_in_is_told_why(
    served: Served, refusal: EplbError, status: Status
) -> None:
    served.ranks.wrong_hello = refusal
    rank = RankClient(served.channel)
    await rank.say(words.a_hello())
    assert await rank.end() == (status, refusal.code, str(refusal))


async def test_a_word_that_the_desk_refuses_ends_the_stream(served: Served) -> None:
    served.ranks.wrong_word = StaleMessage("epoch 7 is over")
    rank = RankClient(served.channel)
    await rank.greet()
    await rank.say(Idle(is_idle=True, step=0))
    assert (await rank.end())[1:] == ("stale_message", "epoch 7 is over")
    assert served.ranks.links[0].is_closed.is_set()


async def test_a_report_that_the_desk_refuses_does_not_end_the_stream(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.ranks.wrong_report = InvalidReport("12 experts, not 16", reason="shape")
    rank = RankClient(served.channel)
    await rank.greet()
    for _ in range(3):
        await rank.say(a_report())
    await rank.say(Idle(is_idle=True, step=0))
    await served.ranks.links[0].until_said(1)
    assert not served.counters.added  # the desk counts what it refuses
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.message for record in told] == ["report refused"]


async def test_a_malformed_report_is_counted_and_does_not_end_the_stream(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    message = encode_up(a_report())
    message.load_report.received.data += b"0"
    await rank.say_raw(message)
    await rank.say(a_report())
    await rank.say(Idle(is_idle=True, step=0))
    await served.ranks.links[0].until_said(1)
    assert len(served.ranks.links[0].reports) == 1
    counted = ("eplb_reports_rejected_total", ("m/i/serve/0/g", "shape"), 1)
    assert served.counters.added == [counted]


async def test_reports_reach_the_desk_as_sent(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    await rank.say(a_report())
    await rank.say(Idle(is_idle=True, step=0))
    await served.ranks.links[0].until_said(1)
    assert plain(served.ranks.links[0].reports[0]) == plain(a_report())


async def test_a_failure_without_a_name_tells_nothing_of_the_inside(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.ranks.wrong_word = KeyError("secret")
    rank = RankClient(served.channel)
    await rank.greet()
    await rank.say(Idle(is_idle=True, step=0))
    status, code, text = await rank.end()
    assert (status, code) == (Status.INTERNAL, "internal")
    assert "secret" not in text
    assert "secret" in caplog.text
    assert served.ranks.links[0].is_closed.is_set()
