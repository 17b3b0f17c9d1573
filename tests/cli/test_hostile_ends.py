"""What may be wrong around a command: its streams, its words, and what others wrote down."""

import subprocess
import sys
from pathlib import Path

import pytest

from eplb_service.cli.main import main
from eplb_service.controller.records import HistoryEntry
from eplb_service.controller.views import HistoryView
from tests.cli.conftest import Ctl
from tests.server import views
from tests.server.desks import Operators

ROOT = Path(__file__).parents[2]
FULL = "failed: the answer cannot be written: No space left on device; "


@pytest.mark.parametrize("words", [["watch", "--count", "1"], ["top", "--count", "1"], ["history"]])
def test_every_verb_says_that_its_answer_cannot_be_written(
    ctl: Ctl,
    operators: Operators,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    operators.statuses = (views.a_status(),)
    assert ctl("status").code == 0
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 1
        monkeypatch.undo()
    assert capsys.readouterr().err.startswith(FULL)


@pytest.mark.parametrize("words", [["watch", "--count", "1"], ["history"]])
def test_a_closed_output_is_told_too(
    ctl: Ctl,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    assert ctl("status").code == 0
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)  # what Python makes of `eplbctl ... >&-`
        assert main(words) == 1
    assert "the answer cannot be written: standard output is closed" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams_leave_no_trace(closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m eplb_service.cli.entry completion bash {closed}"
    env = {"PYTHONPATH": f"{ROOT}:{ROOT}/proto/gen", "PATH": ""}
    ran = subprocess.run(
        ["/bin/sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, check=False
    )
    assert ran.returncode == (1 if closed.startswith(">") else 0)
    assert b"Traceback" not in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "text", ["::1", "http://127.0.0.1:50051", "a b:1", "127.0.0.1:50051/", "host\n:1", "[::1:1"]
)
def test_what_is_no_endpoint_is_never_asked(ctl: Ctl, text: str) -> None:
    ran = ctl("status", "--endpoint", text)
    assert (ran.code, ran.out) == (2, "")
    assert "is no endpoint; write HOST:PORT, for example 127.0.0.1:50051" in ran.err


@pytest.mark.parametrize("text", ["node3:50051", "[::1]:50051", "eplb.serving.svc:1,10.0.0.2:2"])
def test_names_and_addresses_are_endpoints(ctl: Ctl, text: str) -> None:
    assert "is no endpoint" not in ctl("status", "--endpoint", text, "--timeout", "0.1s").err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["heat", "--layer", "0-99999"], "'0-99999' are 100000 layers; at most 1024"),
        (["freeze", "--for", "-5m"], "a value that begins with '-' is written --for=VALUE"),
        (["freeze", "--for=-5m"], "'-5m' is no span of time"),
        (["resume", "--halt", "7"], "`eplbctl resume --help` lists what it takes"),
        (
            ["map", "convert", "a", "b", "--to", "sglang", "--fast"],
            "`eplbctl map convert --help` lists what it takes",
        ),
    ],
)
def test_words_that_argparse_alone_would_not_explain(
    ctl: Ctl, operators: Operators, words: list[str], says: str
) -> None:
    ran = ctl(*words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert operators.asked == []


def test_a_recording_never_replaces_a_file(ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text("precious")
    ran = ctl("record", "start", str(file), "--for", "1s")
    assert ran.code == 2
    assert f"{file} exists already" in ran.err
    assert "nothing was recorded" in ran.err
    assert file.read_text() == "precious"
    assert list(tmp_path.glob("map.json*")) == [file]


def test_a_file_that_is_missing_says_what_it_was_for(ctl: Ctl, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert f"token file {gone}: No such file" in ctl("status", "--token-file", gone).err
    assert f"{gone} cannot be read: No such file or directory; nothing was done" in (
        ctl("validate", gone).err
    )


def test_what_others_wrote_moves_no_cursor_and_makes_no_rows(
    ctl: Ctl, operators: Operators
) -> None:
    wild = HistoryEntry(1e9, "freeze", "", 1, "a\nb\x1b[2Jc\td\x9b1m", "eve\r\nroot@vm")
    operators.told = HistoryView("demo", (wild,))
    for words in (["history"], ["watch", "--count", "1"]):
        out = ctl(*words).out
        assert "a\\nb\\x1b[2Jc\\td\\x9b1m" in out
        assert "eve\\r\\nroot@vm" in out
        assert all(char.isprintable() or char == "\n" for char in out)
    assert len(ctl("history").out.splitlines()) == 2
