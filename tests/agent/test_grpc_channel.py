"""The street over real gRPC: words both ways, losses named, bounds kept."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

import grpc
import pytest
from eplb.v1 import agent_pb2, agent_pb2_grpc

from eplb_service.domain.ids import Epoch, Generation
from eplb_service.protocol.messages import Arm, Down, Hello, Idle, ReportAck
from eplb_service.wire.down import encode_down
from eplb_service.wire.up import decode_up
from tests.agent.fakes import INCARNATION, ME, an_order, name_of, new_desk
from worker_agent.adapters.grpc_channel import MAX_WAITING, GrpcChannel, GrpcStream, Keepalive
from worker_agent.ports.channel import StreamLost

T = TypeVar("T")
PATIENCE_S = 10.0
KEEPALIVE = Keepalive(every_s=30, timeout_s=10)
HELLO = ME.hello(new_desk().snapshot, is_idle=False)
Reply = Callable[[Iterator[agent_pb2.UpMessage], grpc.ServicerContext], Iterator[Down]]


class FakeController(agent_pb2_grpc.AgentServiceServicer):
    """Answers a stream as a test says."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def Connect(  # noqa: N802 - the name is the service's
        self,
        request_iterator: Iterator[agent_pb2.UpMessage],
        context: grpc.ServicerContext,
    ) -> Iterator[agent_pb2.DownMessage]:
        for word in self._reply(request_iterator, context):
            yield encode_down(word)


@contextmanager
def controller(reply: Reply) -> Generator[str]:
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    agent_pb2_grpc.add_AgentServiceServicer_to_server(FakeController(reply), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(PATIENCE_S)


class Rung:
    """A bell for a test."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def until(self, look: Callable[[], T | None]) -> T:
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            assert time.monotonic() < deadline_s, "nothing came"
            self._event.wait(0.2)
            self._event.clear()
        return found


def test_each_stream_goes_to_the_next_of_several_endpoints() -> None:
    def answer(_: object, __: object) -> Iterator[Down]:
        yield Arm(Generation(3), INCARNATION, name_of(an_order()))

    rung = Rung()
    with controller(answer) as endpoint:
        channel = GrpcChannel(f"127.0.0.1:1, {endpoint}", KEEPALIVE)
        for _ in range(2):
            silent = channel.open(rung.ring)
            with pytest.raises(StreamLost, match=r"127\.0\.0\.1:1"):
                rung.until(silent.receive)
            silent.close()
            answering = channel.open(rung.ring)
            assert isinstance(rung.until(answering.receive), Arm)
            answering.close()


def test_a_rank_follows_a_controller_that_names_another() -> None:
    def answer(_: object, __: object) -> Iterator[Down]:
        yield Arm(Generation(3), INCARNATION, name_of(an_order()))

    rung = Rung()
    with controller(answer) as right:

        def refuse(_: object, context: grpc.ServicerContext) -> Iterator[Down]:
            told = (("eplb-code", "elsewhere"), ("eplb-endpoint", f"127.0.0.1:1, {right}"))
            context.set_trailing_metadata(told)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "ask there")

        with controller(refuse) as wrong:
            channel = GrpcChannel(wrong, KEEPALIVE)
            for _ in range(2):
                for lost in (r"elsewhere ask there", r"127\.0\.0\.1:1"):
                    stream = channel.open(rung.ring)
                    with pytest.raises(StreamLost, match=lost):
                        rung.until(stream.receive)
                    stream.close()
                stream = channel.open(rung.ring)
                assert isinstance(rung.until(stream.receive), Arm)
                stream.close()


def test_a_rank_follows_nobody_to_another_machine_in_plain_text() -> None:
    def refuse(_: object, context: grpc.ServicerContext) -> Iterator[Down]:
        context.set_trailing_metadata((("eplb-endpoint", "192.0.2.1:1"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "ask there")

    rung = Rung()
    with controller(refuse) as endpoint:
        channel = GrpcChannel(endpoint, KEEPALIVE)
        stream = channel.open(rung.ring)
        with pytest.raises(StreamLost):
            rung.until(stream.receive)
        stream.close()
        with pytest.raises(StreamLost, match="TLS is off"):
            channel.open(rung.ring)


@contextmanager
def stream_to(endpoint: str) -> Generator[tuple[GrpcStream, Rung]]:
    rung = Rung()
    stream = GrpcChannel(endpoint, KEEPALIVE).open(rung.ring)
    try:
        yield stream, rung
    finally:
        stream.close()


def test_words_travel_both_ways_and_the_bell_rings() -> None:
    heard: SimpleQueue[object] = SimpleQueue()
    ack = ReportAck(Generation(1), INCARNATION, Epoch(3))

    def reply(words: Iterator[agent_pb2.UpMessage], _: grpc.ServicerContext) -> Iterator[Down]:
        for message in words:
            heard.put(decode_up(message))
            yield ack
            yield an_order()

    with controller(reply) as endpoint, stream_to(endpoint) as (stream, rung):
        assert stream.receive() is None
        assert stream.send(HELLO)
        assert rung.until(stream.receive) == ack
        order = rung.until(stream.receive)
        assert getattr(order, "digest", None) == an_order().digest
        hello = heard.get(timeout=PATIENCE_S)
        assert isinstance(hello, Hello)
        assert (hello.status, hello.profile) == (HELLO.status, HELLO.profile)


def test_an_endpoint_where_nobody_listens_is_a_lost_stream() -> None:
    with stream_to("127.0.0.1:1") as (stream, rung):

        def lost() -> str | None:
            try:
                stream.receive()
            except StreamLost as error:
                return str(error)
            return None

        text = rung.until(lost)
        assert "the stream to 127.0.0.1:1 is lost (UNAVAILABLE" in text
        with pytest.raises(StreamLost):
            stream.send(HELLO)


def test_a_refusal_is_told_with_its_code_after_the_words_before_it() -> None:
    arm = Arm(Generation(1), INCARNATION, name_of(an_order()))

    def reply(
        words: Iterator[agent_pb2.UpMessage], context: grpc.ServicerContext
    ) -> Iterator[Down]:
        next(words)
        yield arm
        context.set_trailing_metadata((("eplb-code", "registration_refused"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "rank 0 is refused")

    with controller(reply) as endpoint, stream_to(endpoint) as (stream, rung):
        stream.send(HELLO)
        assert rung.until(stream.receive) == arm
        with pytest.raises(StreamLost, match="registration_refused rank 0 is refused") as lost:
            rung.until(stream.receive)
        assert lost.value.refusal == "FAILED_PRECONDITION registration_refused rank 0 is refused"


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (grpc.StatusCode.UNAVAILABLE, (("eplb-code", "not_leader"),)),
        (
            grpc.StatusCode.FAILED_PRECONDITION,
            (("eplb-code", "elsewhere"), ("eplb-endpoint", "o:1")),
        ),
        (grpc.StatusCode.FAILED_PRECONDITION, ()),
    ],
    ids=["not leading", "elsewhere", "no controller of ours"],
)
def test_an_end_that_a_later_stream_may_not_meet_is_no_refusal(
    status: grpc.StatusCode, told: tuple[tuple[str, str], ...]
) -> None:
    def reply(
        words: Iterator[agent_pb2.UpMessage], context: grpc.ServicerContext
    ) -> Iterator[Down]:
        next(words)
        context.set_trailing_metadata(told)
        context.abort(status, "not now")
        yield from ()

    with controller(reply) as endpoint, stream_to(endpoint) as (stream, rung):
        stream.send(HELLO)
        with pytest.raises(StreamLost, match="not now") as lost:
            rung.until(stream.receive)
        assert lost.value.refusal == ""


def test_a_street_on_which_nobody_reads_fills_up_and_says_so() -> None:
    done = threading.Event()

    def reply(_: Iterator[agent_pb2.UpMessage], __: grpc.ServicerContext) -> Iterator[Down]:
        done.wait(PATIENCE_S)
        return iter(())

    with controller(reply) as endpoint, stream_to(endpoint) as (stream, _):
        refused = False
        for number in range(200_000):
            refused = not stream.send(Idle(is_idle=True, step=number))
            if refused:
                break
        assert refused
        done.set()


def test_words_that_nobody_takes_hold_the_controller_up() -> None:
    sent: list[int] = []

    def reply(words: Iterator[agent_pb2.UpMessage], _: grpc.ServicerContext) -> Iterator[Down]:
        next(words)
        for number in range(MAX_WAITING * 3):
            sent.append(number)
            yield ReportAck(Generation(1), INCARNATION, Epoch(number))

    with controller(reply) as endpoint, stream_to(endpoint) as (stream, rung):
        stream.send(HELLO)
        got: list[int] = []
        while len(got) < MAX_WAITING * 3:
            word = rung.until(stream.receive)
            assert isinstance(word, ReportAck)
            got.append(word.epoch)
        assert got == list(range(MAX_WAITING * 3))


def test_closing_ends_the_threads_of_a_stream() -> None:
    def reply(words: Iterator[agent_pb2.UpMessage], _: grpc.ServicerContext) -> Iterator[Down]:
        for _message in words:
            yield ReportAck(Generation(1), INCARNATION, Epoch(0))

    with controller(reply) as endpoint:
        with stream_to(endpoint) as (stream, rung):
            stream.send(HELLO)
            rung.until(stream.receive)
        deadline_s = time.monotonic() + PATIENCE_S
        woken = threading.Event()
        while any(thread.name == "eplb-stream" for thread in threading.enumerate()):
            assert time.monotonic() < deadline_s
            woken.wait(0.01)
