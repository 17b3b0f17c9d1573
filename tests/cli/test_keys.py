"""eplbctl shows who it is, and asks nobody whom it cannot believe."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eplb_service.cli.main import main
from eplb_service.server.doorman import Doorman
from eplb_service.server.serving import Locks
from eplb_service.server.tls import ServerFiles, server_credentials
from eplb_service.server.tokens import TokenBook
from tests.cli.conftest import Serving
from tests.server.authority import Authority

TOKEN = "0123456789abcdef" * 2


class Locked:
    """A server behind TLS with tokens, and the words that open it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        shown = self.authority.server()
        tokens = folder / "tokens"
        tokens.write_text(f"eplb://viewer/vera {TOKEN}vera\neplb://operator/otto {TOKEN}otto\n")
        files = ServerFiles(shown.certificate, shown.key)
        self.serving = Serving(Locks(server_credentials(files), Doorman(TokenBook(tokens))))
        self.ca = ("--ca", str(self.authority.file))
        self.endpoint = ("--endpoint", f"127.0.0.1:{self.serving.port}")
        for name in ("vera", "otto", "eve"):
            (folder / name).write_text(f"{TOKEN}{name}\n")
        self.folder = folder

    def token(self, name: str) -> tuple[str, str]:
        return ("--token-file", str(self.folder / name))


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    made = Locked(tmp_path_factory.mktemp("keys"))
    yield made
    made.serving.close()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err
    return code, said.out, said.err


def test_a_viewer_reads_and_is_told_what_is_missing_to_act(
    locked: Locked, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = (*locked.endpoint, *locked.ca, *locked.token("vera"))
    assert run(capsys, "status", *shown)[0] == 0
    code, out, err = run(capsys, "freeze", "--for", "1m", *shown)
    assert (code, out) == (4, "")
    assert err == (
        "not allowed: Freeze needs the role operator, and eplb://viewer/vera has the role "
        "viewer; nothing was done\n"
    )
    shown = (*locked.endpoint, *locked.ca, *locked.token("otto"))
    assert run(capsys, "freeze", "--for", "1m", *shown)[0] == 0


def test_a_token_that_is_not_known_is_not_allowed(
    locked: Locked, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "status", *locked.endpoint, *locked.ca, *locked.token("eve"))
    assert code == 4
    assert "the token is not one of this controller's" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--endpoint", "eplb.prod:50051"), 4, "is on another machine and TLS is off"),
        (("--ca", "/nowhere"), 2, "certificate authority /nowhere cannot be read"),
        (("--certificate", "/c"), 2, "a certificate needs its key and --ca"),
        (("--token-file", "/nowhere"), 2, "/nowhere: No such file"),
    ],
)
def test_keys_that_make_no_sense_ask_nobody(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, says: str
) -> None:
    ended, out, err = run(capsys, "status", *words)
    assert (ended, out) == (code, "")
    assert says in err
    assert "Nothing was asked" in err or "name all three" in err


def test_insecure_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("status", "--endpoint", "192.0.2.1:1", "--insecure", "--timeout", "0.1s")
    assert run(capsys, *words)[0] == 5


def test_a_context_keeps_its_keys_and_a_command_goes_above(
    locked: Locked, capsys: pytest.CaptureFixture[str], contexts_file: Path
) -> None:
    put = ("context", "set", "prod", *locked.endpoint, *locked.ca, *locked.token("vera"))
    assert run(capsys, *put)[0] == 0
    assert TOKEN not in contexts_file.read_text(), "the file's name is kept, not the token"
    assert run(capsys, "status", "--context", "prod")[0] == 0
    act = ("freeze", "--for", "1m", "--context", "prod")
    assert run(capsys, *act)[0] == 4
    assert run(capsys, *act, *locked.token("otto"))[0] == 0
    assert run(capsys, "context", "set", "prod", "--deployment", "mine")[0] == 0
    kept = json.loads(run(capsys, "context", "list", "-o", "json")[1])["contexts"]["prod"]
    assert kept["ca"] == str(locked.authority.file)
    assert kept["token_file"] == locked.token("vera")[1]


def test_a_contexts_keys_are_shown_to_its_own_controller_alone(
    locked: Locked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another endpoint on the command line or in the environment is somebody else."""
    put = ("context", "set", "prod", *locked.endpoint, *locked.ca, *locked.token("vera"))
    assert run(capsys, *put)[0] == 0
    assert run(capsys, "status")[0] == 0
    assert run(capsys, "status", *locked.endpoint, *locked.ca)[0] == 4, "no token was sent"
    monkeypatch.setenv("EPLB_ENDPOINT", locked.endpoint[1])
    assert run(capsys, "status", *locked.ca)[0] == 4
    assert run(capsys, "status", "--context", "prod")[0] == 0


def test_the_environment_may_name_the_keys(
    locked: Locked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPLB_ENDPOINT", locked.endpoint[1])
    monkeypatch.setenv("EPLB_CA", locked.ca[1])
    monkeypatch.setenv("EPLB_TOKEN_FILE", locked.token("vera")[1])
    assert run(capsys, "status")[0] == 0
