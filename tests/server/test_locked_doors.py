"""Who may do what, over real TLS: a caller is what its certificate or its token says."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from eplb.v1 import admin_pb2 as pb
from eplb.v1 import admin_pb2_grpc

from eplb_service.domain.errors import EplbError
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement
from eplb_service.protocol.messages import Hello, Idle, Welcome
from eplb_service.server.doorman import Doorman
from eplb_service.server.gate import NEEDED, READS
from eplb_service.server.serving import ControllerServer, Desks, Locks, ServerOptions
from eplb_service.server.tls import ServerFiles, server_credentials
from eplb_service.server.tokens import TokenBook
from tests.server.authority import Authority, Issued
from tests.server.desks import Counters, Operators, Ranks
from tests.server.rank_client import RankClient, code_of
from tests.wire import words

Status = grpc.StatusCode
NAME = words.a_hello().identity.name
TOKEN = "0123456789abcdef" * 2
VIEWER, OPERATOR = "eplb://viewer/vera", "eplb://operator/otto"


@dataclass
class Locked:
    """A server behind TLS, and what is needed to reach it."""

    authority: Authority
    files: ServerFiles
    server: ControllerServer
    port: int
    ranks: Ranks
    operators: Operators
    refused: list[tuple[str, str, str]]

    def channel(self, shown: Issued | None = None, *, ca: Path | None = None) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(
            (ca or self.authority.file).read_bytes(),
            shown.key.read_bytes() if shown else None,
            shown.certificate.read_bytes() if shown else None,
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=options)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def controller(authority: Authority) -> Issued:
    return authority.server()


@pytest.fixture(scope="module")
def rank3(authority: Authority) -> Issued:
    return authority.rank(NAME, 3)


@pytest.fixture(scope="module")
def nobody(authority: Authority) -> Issued:
    return authority.issue("nobody")


@pytest.fixture
async def locked(authority: Authority, controller: Issued, tmp_path: Path) -> AsyncIterator[Locked]:
    """Certificates are asked for, and tokens are known."""
    files = ServerFiles(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")
    replace_files(files, controller, authority)
    tokens = tmp_path / "tokens"
    tokens.write_text(
        f"# who, and the token\n{VIEWER} {TOKEN}viewer\n{OPERATOR} {TOKEN}operator\n"
        f"eplb://agent/{NAME}/* {TOKEN}agents\n"
    )
    ranks, operators = Ranks(), Operators()
    refused: list[tuple[str, str, str]] = []

    async def note(who: str, what: str, why: EplbError) -> None:
        refused.append((who, what, why.code))

    locks = Locks(server_credentials(files), Doorman(TokenBook(tokens)), note=note)
    desks = Desks(ranks, operators, operators, operators)
    server = ControllerServer(desks, Counters(), ServerOptions(stop_grace_s=1.0), locks)
    port = await server.start()
    yield Locked(authority, files, server, port, ranks, operators, refused)
    await server.stop()


def replace_files(files: ServerFiles, shown: Issued, believed: Authority) -> None:
    assert files.client_ca is not None
    files.certificate.write_bytes(shown.certificate.read_bytes())
    files.key.write_bytes(shown.key.read_bytes())
    files.client_ca.write_bytes(believed.file.read_bytes())


def hello_of(rank: int) -> Hello:
    """A Hello of one rank of eight, two slots each."""
    hello = words.a_hello()
    held = np.tile(np.array([[0, 1, 2, 0]], np.int32), (2, 4))
    return replace(
        hello,
        profile=replace(hello.profile, rank=rank, num_ranks=8),
        placement=Placement(held, 3, SlotLayout((2,) * 8)),
    )


def bearing(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {TOKEN}{name}"),)


async def call(
    channel: grpc.aio.Channel, verb: str, metadata: tuple[tuple[str, str], ...] = ()
) -> tuple[grpc.StatusCode, str, str]:
    """Call a verb with a request that says nothing else: status, code and text."""
    method = getattr(admin_pb2_grpc.AdminServiceStub(channel), verb)
    kind = getattr(pb, f"{verb}Request")
    act = {"act": pb.Act(request_id="r", who="root@host")} if verb not in READS else {}
    try:
        await method(kind(**act), timeout=10, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code(), code_of(error.trailing_metadata()), error.details() or ""
    return Status.OK, "", ""


@pytest.mark.parametrize(
    ("deployment", "rank"), [(NAME, 5), ("other/0/serve/0/0", 3)], ids=["rank", "deployment"]
)
async def test_f60_a_rank_cannot_speak_for_another(
    locked: Locked, rank3: Issued, authority: Authority, deployment: str, rank: int
) -> None:
    """Rank 3's certificate, a Hello of rank 5; or a certificate of another deployment's rank 3."""
    shown = rank3 if deployment == NAME else authority.rank(deployment, 3)
    async with locked.channel(shown) as channel:
        client = RankClient(channel)
        await client.say(hello_of(rank))
        status, code, text = await client.end()
    assert (status, code) == (Status.PERMISSION_DENIED, "access_denied")
    assert f"its Hello names rank {rank} of {NAME}" in text
    assert not locked.ranks.links, "nothing it said was counted"
    who, what, why = locked.refused[0]
    assert (who, why) == (f"eplb://agent/{deployment}/3", "access_denied")
    assert what == f"Connect as rank {rank} of {NAME}"


async def test_a_rank_that_is_who_it_says_is_served(locked: Locked, rank3: Issued) -> None:
    async with locked.channel(rank3) as channel:
        client = RankClient(channel)
        assert isinstance(await client.greet(hello_of(3)), Welcome)
        await client.say(Idle(is_idle=True, step=1))
        await locked.ranks.links[0].until_said(1)


async def test_a_token_for_all_ranks_of_a_deployment_speaks_for_each(
    locked: Locked, nobody: Issued
) -> None:
    async with locked.channel(nobody) as channel:
        for rank in (0, 7):
            client = RankClient(channel, metadata=bearing("agents"))
            assert isinstance(await client.greet(hello_of(rank)), Welcome)


async def test_without_a_certificate_nobody_gets_as_far_as_a_word(locked: Locked) -> None:
    async with locked.channel() as channel:
        assert (await call(channel, "Status", bearing("operator")))[0] is Status.UNAVAILABLE
    async with grpc.aio.insecure_channel(f"127.0.0.1:{locked.port}") as channel:
        assert (await call(channel, "Status", bearing("operator")))[0] is Status.UNAVAILABLE


async def test_a_certificate_of_another_authority_is_not_believed(
    locked: Locked, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "strange").issue("otto", f"URI:{OPERATOR}")
    async with locked.channel(stranger) as channel:
        assert (await call(channel, "Status"))[0] is Status.UNAVAILABLE


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        bearing("guessed"),
        (("authorization", "Basic b3R0bzp4"),),
        bearing("viewer") * 2,
    ],
    ids=["no name", "unknown token", "other scheme", "two tokens"],
)
async def test_a_caller_that_does_not_say_who_it_is_is_refused(
    locked: Locked,
    nobody: Issued,
    metadata: tuple[tuple[str, str], ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with locked.channel(nobody) as channel:
            status, code, text = await call(channel, "Status", metadata)
    assert (status, code) == (Status.UNAUTHENTICATED, "unauthenticated")
    assert not locked.operators.asked
    told = text + caplog.text + str([vars(r) for r in caplog.records]) + str(locked.refused)
    assert TOKEN not in told
    assert "b3R0bzp4" not in told
    assert len(locked.refused) == 1


@pytest.mark.parametrize("verb", sorted(method.rpartition("/")[2] for method in NEEDED))
async def test_a_viewer_reads_and_changes_nothing(
    locked: Locked, nobody: Issued, verb: str
) -> None:
    async with locked.channel(nobody) as channel:
        status, code, text = await call(channel, verb, bearing("viewer"))
    if verb in READS:
        assert code not in ("access_denied", "unauthenticated")
        return
    assert (status, code) == (Status.PERMISSION_DENIED, "access_denied")
    assert text == (
        f"{verb} needs the role operator, and {VIEWER} has the role viewer; nothing was done"
    )
    assert not locked.operators.asked
    assert locked.refused == [(VIEWER, verb, "access_denied")]


async def test_an_operator_acts_under_the_name_that_was_proved(
    locked: Locked, authority: Authority
) -> None:
    shown = authority.issue("otto", f"URI:{OPERATOR}")
    async with locked.channel(shown) as channel:
        assert (await call(channel, "Freeze"))[0] is Status.OK
        assert (await call(channel, "Status"))[0] is Status.OK
    assert getattr(locked.operators.asked[0][1], "who", "") == f"{OPERATOR} (root@host)"


async def test_ranks_and_operators_keep_to_their_own_doors(
    locked: Locked, rank3: Issued, nobody: Issued
) -> None:
    async with locked.channel(rank3) as channel:
        assert (await call(channel, "Status"))[:2] == (Status.PERMISSION_DENIED, "access_denied")
    async with locked.channel(nobody) as channel:
        client = RankClient(channel, metadata=bearing("operator"))
        assert (await client.end())[:2] == (Status.PERMISSION_DENIED, "access_denied")


async def test_replaced_certificates_are_used_at_the_next_connection(
    locked: Locked, rank3: Issued, tmp_path: Path
) -> None:
    """The stream that is open goes on; the old authority's callers do not come back."""
    after = Authority(tmp_path / "after")
    async with locked.channel(rank3) as old:
        stream = RankClient(old)
        await stream.greet(hello_of(3))
        replace_files(locked.files, after.server(), after)
        async with locked.channel(after.rank(NAME, 4), ca=after.file) as new:
            assert isinstance(await RankClient(new).greet(hello_of(4)), Welcome)
        await stream.say(Idle(is_idle=True, step=1))
        await locked.ranks.links[0].until_said(1)
    async with locked.channel(rank3, ca=after.file) as back:
        assert (await call(back, "Status"))[0] is Status.UNAVAILABLE


async def test_certificates_that_make_no_sense_leave_the_old_ones_in_use(
    locked: Locked, rank3: Issued, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """A key of another certificate, as between the two writes of a careless replacement."""
    locked.files.key.write_bytes(authority.server("other").key.read_bytes())
    for _ in range(2):
        async with locked.channel(rank3) as channel:
            assert isinstance(await RankClient(channel).greet(hello_of(3)), Welcome)
    told = [r for r in caplog.records if r.message == "certificate not renewed"]
    assert len(told) == 1
    assert "make no pair" in vars(told[0])["text"]
    assert "PRIVATE" not in str(vars(told[0]))
