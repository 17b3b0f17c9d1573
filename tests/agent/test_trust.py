"""The agent believes one controller, says who it is, and says nothing to others."""

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import grpc
import pytest
from eplb.v1 import agent_pb2, agent_pb2_grpc

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.ids import Epoch, Generation
from eplb_service.protocol.messages import ReportAck
from eplb_service.wire.down import encode_down
from tests.agent.fakes import INCARNATION
from tests.server.authority import Authority, Issued
from worker_agent.adapters.grpc_channel import GrpcChannel, GrpcStream, Keepalive
from worker_agent.adapters.trust import Trust
from worker_agent.ports.channel import StreamLost

KEEPALIVE = Keepalive(every_s=30, timeout_s=10)
ACK = ReportAck(Generation(1), INCARNATION, Epoch(3))
PATIENCE_S = 20.0


class Greeter(agent_pb2_grpc.AgentServiceServicer):
    """Notes who called, and says one word."""

    def __init__(self) -> None:
        self.told: SimpleQueue[tuple[object, object]] = SimpleQueue()

    def Connect(  # noqa: N802 - the name is the service's
        self, request_iterator: Iterator[agent_pb2.UpMessage], context: grpc.ServicerContext
    ) -> Iterator[agent_pb2.DownMessage]:
        del request_iterator
        headers = dict(context.invocation_metadata())
        self.told.put((context.auth_context().get("peer_uri"), headers.get("authorization")))
        yield encode_down(ACK)


@contextmanager
def controller(authority: Authority, shown: Issued) -> Generator[tuple[str, Greeter]]:
    greeter = Greeter()
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    agent_pb2_grpc.add_AgentServiceServicer_to_server(greeter, server)
    pair = (shown.key.read_bytes(), shown.certificate.read_bytes())
    ca = authority.file.read_bytes()
    credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}", greeter
    finally:
        server.stop(0).wait(PATIENCE_S)


@contextmanager
def opened(channel: GrpcChannel) -> Generator[tuple[GrpcStream, threading.Event]]:
    rung = threading.Event()
    stream = channel.open(rung.set)
    try:
        yield stream, rung
    finally:
        stream.close()


def first_word(channel: GrpcChannel) -> object:
    """The first word of a new stream; raises StreamLost."""
    with opened(channel) as (stream, rung):
        while (word := stream.receive()) is None:
            assert rung.wait(PATIENCE_S), "nothing came"
            rung.clear()
        return word


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("keys"))


@pytest.mark.parametrize("endpoint", ["controller:7420", "10.0.0.3:1", "[2001:db8::1]:1"])
def test_plain_text_to_another_machine_is_refused_unless_asked_for(endpoint: str) -> None:
    with pytest.raises(InvalidSettings, match="on another machine, and TLS is off"):
        GrpcChannel(endpoint, KEEPALIVE)
    GrpcChannel(endpoint, KEEPALIVE, Trust(insecure=True))


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "localhost:1", "[::1]:1"])
def test_plain_text_on_this_machine_is_as_it_was(endpoint: str) -> None:
    GrpcChannel(endpoint, KEEPALIVE)


def test_keys_that_cannot_be_read_are_refused_at_the_start(
    authority: Authority, tmp_path: Path
) -> None:
    mine, other = authority.rank("m", 0), authority.rank("m", 1)
    ca, gone = str(authority.file), str(tmp_path / "gone")
    (tmp_path / "token").write_text("two words")
    for trust, says in (
        (Trust(ca=gone), "gone: No such file"),
        (Trust(ca=ca, certificate=str(mine.certificate), key=str(other.key)), "make no pair"),
        (Trust(ca=ca, token_file=str(tmp_path / "token")), "are no token"),
    ):
        with pytest.raises(InvalidSettings, match=says):
            GrpcChannel("127.0.0.1:1", KEEPALIVE, trust)


def test_the_rank_shows_certificate_and_token(authority: Authority, tmp_path: Path) -> None:
    rank, token = authority.rank("m", 3), tmp_path / "token"
    token.write_text("s3cret\n")
    trust = Trust(
        ca=str(authority.file),
        certificate=str(rank.certificate),
        key=str(rank.key),
        token_file=str(token),
    )
    with controller(authority, authority.server()) as (endpoint, greeter):
        assert first_word(GrpcChannel(endpoint, KEEPALIVE, trust)) == ACK
        told = greeter.told.get(timeout=PATIENCE_S)
    assert told == ([b"eplb://agent/m/3"], "Bearer s3cret")


def test_a_controller_of_another_authority_or_name_is_not_believed(
    authority: Authority, tmp_path: Path
) -> None:
    rank = authority.rank("m", 3)
    stranger = Authority(tmp_path / "strange")
    mine = Trust(str(authority.file), str(rank.certificate), str(rank.key))
    with controller(authority, stranger.server()) as (endpoint, greeter):
        channel = GrpcChannel(endpoint, KEEPALIVE, mine)
        with pytest.raises(StreamLost, match="UNAVAILABLE"):
            first_word(channel)
        assert greeter.told.empty()
    elsewhere = authority.issue("elsewhere", "DNS:eplb.moe.svc")
    with controller(authority, elsewhere) as (endpoint, _):
        with pytest.raises(StreamLost, match="UNAVAILABLE"):
            first_word(GrpcChannel(endpoint, KEEPALIVE, mine))
        named = replace(mine, server_name="eplb.moe.svc")
        assert first_word(GrpcChannel(endpoint, KEEPALIVE, named)) == ACK


def test_replaced_keys_are_used_at_the_next_stream(authority: Authority, tmp_path: Path) -> None:
    """Authority, certificate and key all change; in between a file is missing."""
    after = Authority(tmp_path / "after")
    ca, certificate, key = (tmp_path / name for name in ("ca", "crt", "key"))

    def put(by: Authority) -> None:
        rank = by.rank("m", 3)
        ca.write_bytes(by.file.read_bytes())
        certificate.write_bytes(rank.certificate.read_bytes())
        key.write_bytes(rank.key.read_bytes())

    put(authority)
    trust = Trust(ca=str(ca), certificate=str(certificate), key=str(key))
    with controller(after, after.server()) as (endpoint, _):
        channel = GrpcChannel(endpoint, KEEPALIVE, trust)
        with pytest.raises(StreamLost):
            first_word(channel)
        key.unlink()
        with pytest.raises(StreamLost, match="No such file"):
            first_word(channel)
        put(after)
        assert first_word(channel) == ACK
