"""How a rank's stream is replaced, closed and ended, over real gRPC."""

import asyncio
import logging
import time

import grpc
import grpc.aio
import pytest

from eplb_service.domain.errors import (
    StaleMessage,
)
from eplb_service.domain.ids import Generation, Incarnation
from eplb_service.domain.report import LoadReport
from eplb_service.protocol.messages import Idle, Resume
from eplb_service.server.serving import ServerOptions
from tests.server.conftest import Served
from tests.server.rank_client import RankClient
from tests.wire import words

Status = grpc.StatusCode


def a_report() -> LoadReport:
    report = words.a_report()
    assert isinstance(report, LoadReport)
    return report


def a_resume(number: int) -> Resume:
    return Resume(Generation(1), Incarnation(1), number)


async def test_a_newer_stream_of_a_rank_replaces_the_older(served: Served) -> None:
    old, new, other = (RankClient(served.channel) for _ in range(3))
    await old.greet()
    await other.greet(words.a_hello(rank=1))
    await new.greet()
    status, code, text = await old.end()
    assert (status, code) == (Status.UNAVAILABLE, "stream_closed")
    assert "rank 0 opened a newer stream" in text
    first, second, third = served.ranks.links
    assert first.is_closed.is_set()
    for link, rank in ((second, other), (third, new)):
        assert not link.is_closed.is_set()
        link.outbox.send(a_resume(1))
        assert await rank.hear() == a_resume(1)


async def test_a_stream_that_was_replaced_leaves_its_successor_seated(served: Served) -> None:
    first, second, third = (RankClient(served.channel) for _ in range(3))
    await first.greet()
    await second.greet()
    await first.end()
    await third.greet()
    assert (await second.end())[1] == "stream_closed"
    assert not served.ranks.links[2].is_closed.is_set()


async def test_the_same_rank_of_another_deployment_is_somebody_else(served: Served) -> None:
    one, two = RankClient(served.channel), RankClient(served.channel)
    await one.greet(words.a_hello(model="a"))
    await two.greet(words.a_hello(model="b"))
    served.ranks.links[0].outbox.send(a_resume(4))
    assert await one.hear() == a_resume(4)


async def test_a_refused_newcomer_leaves_the_older_stream_alone(served: Served) -> None:
    old, stale = RankClient(served.channel), RankClient(served.channel)
    await old.greet()
    served.ranks.wrong_hello = StaleMessage("incarnation 0 is over")
    await stale.say(words.a_hello(incarnation=0))
    assert (await stale.end())[1] == "stale_message"
    served.ranks.links[0].outbox.send(a_resume(1))
    assert await old.hear() == a_resume(1)


async def test_an_outbox_that_overflows_closes_its_stream(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    for number in range(9):
        served.ranks.links[0].outbox.send(a_resume(number))
    status, code, text = await rank.end()
    assert (status, code) == (Status.UNAVAILABLE, "stream_closed")
    assert "8 words wait and the rank takes none" in text


async def test_a_rank_that_takes_no_words_loses_its_stream(served: Served) -> None:
    """The way down is stuck inside gRPC: the writer hangs, yet the desk learns and goes on."""
    rank = RankClient(served.channel)
    await rank.greet()
    link = served.ranks.links[0]
    async with asyncio.timeout(10):
        while not link.is_closed.is_set():
            link.outbox.send(words.a_large_welcome())
            await asyncio.sleep(0)
    async with asyncio.timeout(5):
        with pytest.raises(grpc.aio.AioRpcError, match="the rank takes none"):
            await _read_all(rank)


async def test_a_rank_that_takes_no_words_keeps_none_from_another(served: Served) -> None:
    """F66: a slow consumer costs itself its stream; what others are told does not wait for it."""
    slow = RankClient(served.channel)
    await slow.greet()
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{served.port}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        quick = RankClient(channel)
        await quick.greet(words.a_hello(rank=1))
        of_slow, of_quick = served.ranks.links
        number = 0
        async with asyncio.timeout(20):
            while not of_slow.is_closed.is_set():
                number += 1
                of_slow.outbox.send(words.a_large_welcome())
                of_quick.outbox.send(a_resume(number))
                assert await quick.hear() == a_resume(number)
        assert number > 8, "the slow one's outbox was filled while the other heard every word"
        assert not of_quick.is_closed.is_set()


async def _read_all(rank: RankClient) -> None:
    for _ in range(1_000):
        await rank.call.read()


async def test_a_desk_may_close_a_stream(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    served.ranks.links[0].outbox.close("leadership lost")
    assert await rank.end() == (Status.UNAVAILABLE, "stream_closed", "leadership lost")
    served.ranks.links[0].outbox.send(a_resume(1))  # too late, and no failure


@pytest.mark.parametrize("turns", range(12))
async def test_a_stream_may_be_closed_at_any_moment_of_its_greeting(
    served: Served, turns: int
) -> None:
    served.ranks.close_after_turns = turns
    rank = RankClient(served.channel)
    await rank.say(words.a_hello())
    assert await rank.end() == (Status.UNAVAILABLE, "stream_closed", "closed by the desk")


async def test_ranks_that_leave_at_any_moment_leave_no_failure_behind(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for turns in range(25):
        rank = RankClient(served.channel)
        await rank.greet()
        link = served.ranks.links[-1]
        for number in range(6):
            link.outbox.send(a_resume(number))
        for _ in range(turns):
            await asyncio.sleep(0)
        rank.call.cancel()
        async with asyncio.timeout(5):
            await link.is_closed.wait()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_ranks_that_leave_while_a_word_waits_leave_no_failure_behind(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Now and then gRPC ends the write before it tells the server that the stream is over."""
    for turn in range(100):
        rank = RankClient(served.channel)
        await rank.greet()
        link = served.ranks.links[-1]
        for _ in range(5):
            link.outbox.send(words.a_large_welcome())
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        rank.call.cancel()
        time.sleep(0.01 * (turn % 2))  # noqa: ASYNC251  # both events reach the loop at once
        async with asyncio.timeout(5):
            await link.is_closed.wait()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_word_that_was_begun_is_finished_though_the_rank_leaves(served: Served) -> None:
    rank = RankClient(served.channel)
    await rank.greet()
    link = served.ranks.links[0]
    served.ranks.slow = asyncio.Event()
    await rank.say(Idle(is_idle=True, step=3))
    async with asyncio.timeout(5):
        await link.is_entered.wait()
        rank.call.cancel()
        await RankClient(served.channel).greet()  # cancels once more: this stream replaces it
        assert not link.is_closed.is_set()
        served.ranks.slow.set()
        await link.is_closed.wait()
    assert link.words == [Idle(is_idle=True, step=3)]


async def test_a_stream_that_ends_while_its_hello_is_handled_is_told_to_the_desk(
    served: Served,
) -> None:
    served.ranks.slow_hello = asyncio.Event()
    rank = RankClient(served.channel)
    await rank.say(words.a_hello())
    async with asyncio.timeout(5):
        await served.ranks.has_hello.wait()
        rank.call.cancel()
        await rank.call.code()
        await asyncio.sleep(0.05)  # the server hears of it
        served.ranks.slow_hello.set()
        await served.ranks.links[0].is_closed.wait()


async def test_a_server_that_stops_ends_all_streams_at_once(served: Served) -> None:
    ranks = [RankClient(served.channel) for _ in range(3)]
    for number, rank in enumerate(ranks):
        await rank.greet(words.a_hello(model=str(number)))
    async with asyncio.timeout(1.5):  # below the grace: nobody waits for streams that never end
        await served.server.stop()
    for rank in ranks:
        status, code, text = await rank.end()
        assert (status, code) == (Status.UNAVAILABLE, "stream_closed")
        assert "the controller stops" in text
    assert all(link.is_closed.is_set() for link in served.ranks.links)


class TestSilence:
    """A stream on which nothing is said."""

    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(hello_timeout_s=0.05)

    async def test_a_stream_without_hello_is_not_kept(self, served: Served) -> None:
        status, code, text = await RankClient(served.channel).end()
        assert (status, code) == (Status.DEADLINE_EXCEEDED, "deadline_exceeded")
        assert "no word within 0.05 s; expected Hello" in text
