"""Keys that do not fit who answers are told as such, and never as a controller that is away."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eplb_service.cli.main import main
from eplb_service.server.serving import Locks
from eplb_service.server.tls import ServerFiles, server_credentials
from tests.cli.conftest import Serving
from tests.server.authority import Authority

ROOT = Path(__file__).parents[2]


class Doors:
    """A controller in plain text, one in TLS, and one that asks callers for a certificate."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.others = Authority(folder / "ours"), Authority(folder / "others")
        shown = self.ours.server()
        self.mine = self.ours.issue("otto", "URI:eplb://operator/otto")
        self.strange = self.others.issue("eve", "URI:eplb://operator/eve")
        one_sided = ServerFiles(shown.certificate, shown.key)
        mutual = ServerFiles(shown.certificate, shown.key, self.ours.file)
        self.servings = {
            "plain": Serving(),
            "tls": Serving(Locks(server_credentials(one_sided), None)),
            "mutual": Serving(Locks(server_credentials(mutual), None)),
        }

    def at(self, name: str) -> str:
        return f"127.0.0.1:{self.servings[name].port}"


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    made = Doors(tmp_path_factory.mktemp("doors"))
    yield made
    for serving in made.servings.values():
        serving.close()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code = main(words)
    said = capsys.readouterr()
    assert (code, said.out) == (4, "")
    assert "is it running" not in said.err
    assert "(OK)" not in said.err
    return said.err


def test_plain_text_to_tls(doors: Doors, capsys: pytest.CaptureFixture[str]) -> None:
    err = told(capsys, "status", "--endpoint", doors.at("tls"))
    assert f"something answers at {doors.at('tls')}, but in TLS and not in plain text" in err
    assert "--ca FILE" in err


def test_plain_text_to_one_that_asks_for_certificates(
    doors: Doors, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "but in TLS and not in plain" in told(capsys, "status", "--endpoint", doors.at("mutual"))


def test_tls_to_plain_text(doors: Doors, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--endpoint", doors.at("plain"), "--ca", str(doors.ours.file))
    assert f"something answers at {doors.at('plain')}, but not in TLS" in told(
        capsys, "status", *words
    )


def test_an_authority_that_is_not_the_controllers(
    doors: Doors, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--endpoint", doors.at("tls"), "--ca", str(doors.others.file))
    assert f"is not of an authority in {doors.others.file}" in told(capsys, "status", *words)


def test_a_name_that_the_certificate_does_not_hold(
    doors: Doors, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--endpoint", doors.at("tls"), "--ca", str(doors.ours.file))
    err = told(capsys, "status", *words, "--server-name", "eplb.prod")
    assert "is for other names than eplb.prod: for 127.0.0.1, localhost" in err


def test_no_certificate_where_one_is_asked_for(
    doors: Doors, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--endpoint", doors.at("mutual"), "--ca", str(doors.ours.file))
    assert "name it with --certificate FILE and --key FILE" in told(capsys, "status", *words)


def test_a_certificate_of_another_authority(
    doors: Doors, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--endpoint", doors.at("mutual"), "--ca", str(doors.ours.file))
    shown = ("--certificate", str(doors.strange.certificate), "--key", str(doors.strange.key))
    err = told(capsys, "status", *words, *shown)
    assert f"hangs up on the certificate in {doors.strange.certificate}" in err
    shown = ("--certificate", str(doors.mine.certificate), "--key", str(doors.mine.key))
    assert main(("status", *words, *shown)) == 0


@pytest.mark.processes
@pytest.mark.slow
def test_what_grpc_logs_stays_away_from_users(doors: Doors) -> None:
    words = ("status", "--endpoint", doors.at("tls"), "--ca", str(doors.others.file))
    ran = subprocess.run(
        [sys.executable, "-m", "eplb_service.cli.entry", *words],
        cwd=ROOT,
        env={"PYTHONPATH": ".:proto/gen", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (4, "")
    assert ran.stderr.startswith("not allowed: ")
    assert ran.stderr.count("\n") == 1
