"""Controllers by name, kept in a file of the user."""

import json
from pathlib import Path

import pytest

from eplb_service.cli.main import main
from tests.cli.conftest import Serving
from tests.server.desks import Operators


def bare(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_first_context_is_the_current_one_until_another_is_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bare(capsys, "context", "list")[1].startswith("no contexts; ")
    bare(capsys, "context", "set", "a", "--endpoint", "127.0.0.1:1")
    bare(capsys, "context", "set", "b", "--endpoint", "127.0.0.1:2", "--deployment", 'q"\\')
    assert bare(capsys, "context", "use", "b")[0] == 0
    _, out, _ = bare(capsys, "context", "list", "-o", "json")
    kept = json.loads(out)
    assert kept["current"] == "b"
    assert kept["contexts"]["b"] == {"endpoint": "127.0.0.1:2", "deployment": 'q"\\'}
    assert bare(capsys, "context", "delete", "b")[0] == 0
    assert json.loads(bare(capsys, "context", "list", "-o", "json")[1])["current"] is None


def test_commands_go_where_the_context_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EPLB_ENDPOINT", raising=False)
    bare(capsys, "context", "set", "a", "--endpoint", "127.0.0.1:1")
    bare(capsys, "context", "set", "b", "--endpoint", "127.0.0.1:2")
    assert "answers at 127.0.0.1:1 " in bare(capsys, "status")[2]
    assert "answers at 127.0.0.1:2 " in bare(capsys, "status", "--context", "b")[2]
    monkeypatch.setenv("EPLB_ENDPOINT", "127.0.0.1:3")
    assert "answers at 127.0.0.1:3 " in bare(capsys, "status")[2]
    assert "answers at 127.0.0.1:2 " in bare(capsys, "status", "--context", "b")[2]
    assert "answers at 127.0.0.1:4 " in bare(capsys, "status", "--endpoint", "127.0.0.1:4")[2]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("context", "use", "x"), 1, "no context is named 'x'; there are: none yet"),
        (("status", "--context", "x"), 1, "no context is named 'x'"),
        (("context", "set", "x"), 2, "context x is new; say where it is"),
        (("context", "set", "a b", "--endpoint", "h:1"), 2, "'a b' is no name"),
    ],
)
def test_names_that_are_not_there_are_refused(
    capsys: pytest.CaptureFixture[str],
    contexts_file: Path,
    words: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    ended, out, err = bare(capsys, *words)
    assert (ended, out) == (code, "")
    assert says in err
    assert not contexts_file.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version = 2", "version: Input should be 1"),
        ("[contexts.a]\nendpoint = 'here'", "contexts.a.endpoint: Value error, 'here' is no"),
        ("[contexts.a]\nendpont = 'h:1'", "contexts.a.endpoint: Field required"),
        ("=", "is no TOML"),
        ("current = 'z'", "no context is named 'z'"),
    ],
)
def test_a_file_that_makes_no_sense_is_told_and_kept(
    capsys: pytest.CaptureFixture[str], contexts_file: Path, text: str, says: str
) -> None:
    contexts_file.parent.mkdir()
    contexts_file.write_text(text)
    ended, out, err = bare(capsys, "status")
    assert (ended > 0, out) == (True, "")
    assert says in err
    assert contexts_file.read_text() == text


def test_the_contexts_deployment_is_the_default(
    one_server: Serving, operators: Operators, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"127.0.0.1:{one_server.port}"
    bare(capsys, "context", "set", "a", "--endpoint", where, "--deployment", "mine")
    bare(capsys, "status", "--context", "a")
    assert operators.asked[-1] == ("status", "mine")
