"""Files of keys and tokens: read whole, read again, and never told to anybody."""

from pathlib import Path

import pytest

from eplb_service.domain.access import Caller, Role
from eplb_service.domain.errors import InvalidSettings, Unauthenticated
from eplb_service.server.key_files import Watched, require_authorities, require_pair
from eplb_service.server.tokens import TokenBook, read_tokens
from tests.server.authority import Authority, openssl

TOKEN = "f00d" * 8


def test_a_file_of_tokens_that_changes_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"eplb://viewer/vera {TOKEN}\n")
    book = TokenBook(file)
    assert book.caller(TOKEN) == Caller(Role.VIEWER, "vera")
    file.write_text(f"eplb://operator/vera {TOKEN}\n")
    assert book.caller(TOKEN).role is Role.OPERATOR
    file.write_text("eplb://operator/vera\n")
    assert book.caller(TOKEN).role is Role.OPERATOR, "what it said before stays"
    file.write_text(f"eplb://operator/vera {TOKEN[::-1]}\n")
    with pytest.raises(Unauthenticated):
        book.caller(TOKEN)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds none"),
        ("# nobody\n\n", "holds none"),
        (f"{TOKEN}\n", "line 1 has 1 words"),
        (f"eplb://viewer/v {TOKEN} more\n", "line 1 has 3 words"),
        (f"# v\n{TOKEN} eplb://viewer/v\n", "line 2: its first word names no caller"),
        ("eplb://viewer/v secret\n", "has 6 characters; expected 32 to 512"),
        (f"eplb://viewer/v {TOKEN}\x7f\n", "expected 32 to 512 printable ones"),
        (f"eplb://viewer/v {TOKEN}\neplb://operator/o {TOKEN}\n", "line 2 repeats the token of"),
    ],
)
def test_a_file_of_tokens_that_makes_no_sense_is_told_by_line_and_without_tokens(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=says) as wrong:
        read_tokens(file)
    assert TOKEN not in str(wrong.value)
    assert "secret" not in str(wrong.value)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"file of tokens .*gone: No such file"):
        TokenBook(tmp_path / "gone")
    with pytest.raises(InvalidSettings, match="make no pair"):
        require_pair(tmp_path / "gone", tmp_path / "gone")
    with pytest.raises(InvalidSettings, match="cannot be read"):
        require_authorities(tmp_path / "gone")


def test_a_key_with_a_password_is_refused(tmp_path: Path) -> None:
    made = Authority(tmp_path).server()
    locked = tmp_path / "locked.key"
    openssl("pkey", "-in", str(made.key), "-aes256", "-passout", "pass:x", "-out", str(locked))
    with pytest.raises(InvalidSettings, match=r"the key has a password"):
        require_pair(made.certificate, locked)


def test_files_that_are_replaced_while_they_are_read_are_read_once_more(tmp_path: Path) -> None:
    """The first of two files is replaced after it was read; the two belong together even so."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old")
    second.write_text("old")
    replacing: list[str] = []

    def read() -> tuple[str, str]:
        one = first.read_text()
        for text in replacing:
            first.write_text(text)
            second.write_text(text)
        replacing.clear()
        return one, second.read_text()

    watched = Watched((first, second), read)
    first.write_text("newer")
    replacing.append("newest!")
    assert watched.refreshed()
    assert watched.value == ("newest!", "newest!")
    assert not watched.refreshed()
