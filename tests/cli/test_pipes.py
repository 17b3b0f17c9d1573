"""What is no file is read by the deadline, or refused by name; no verb hangs on it."""

import os
import threading
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Ctl
from tests.cli.test_failures import SOUND
from tests.server.desks import Operators


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "ff"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "FF", "--ranks", "2"),
        ("replay", "FF", "--ranks", "2"),
        ("analyze", "FF", "--ranks", "2"),
        ("validate", "FF"),
        ("map", "convert", "FF", "out", "--to", "sglang"),
        ("diff", "FF", "FF"),
        ("import", "FF"),
        ("status", "--token-file", "FF"),
    ],
    ids=lambda words: words[0],
)
def test_a_pipe_that_brings_nothing_ends_by_the_deadline(
    ctl: Ctl, operators: Operators, pipe: Path, words: tuple[str, ...]
) -> None:
    began_s = time.monotonic()
    ran = ctl(*(str(pipe) if word == "FF" else word for word in words), "--timeout", "0.3s")
    assert (ran.code, ran.out) == (5, "")
    assert f"{pipe} is a pipe that did not end within 0.3s" in ran.err
    assert time.monotonic() - began_s < 10
    assert operators.asked == []


def test_a_pipe_that_brings_a_map_is_read(ctl: Ctl, pipe: Path) -> None:
    writer = threading.Thread(target=pipe.write_text, args=(SOUND,))
    writer.start()
    assert ctl("validate", str(pipe), "--timeout", "10s").code == 0
    writer.join()


def test_what_a_shell_puts_in_the_place_of_a_process_is_read(ctl: Ctl) -> None:
    reader, writer = os.pipe()
    os.write(writer, SOUND.encode())
    os.close(writer)
    assert ctl("validate", f"/dev/fd/{reader}", "--timeout", "10s").code == 0
    assert "is a pipe that did not end" not in ctl("validate", f"/dev/fd/{reader}").err
    os.close(reader)


def test_a_token_from_a_pipe_is_read_once(ctl: Ctl) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"0123456789abcdef\n")
    os.close(writer)
    words = ("watch", "--token-file", f"/dev/fd/{reader}", "--timeout", "1.2s")
    ran = ctl(*words)
    os.close(reader)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("option", ["--ca", "--certificate", "--key"])
def test_keys_are_read_more_than_once_and_so_from_files_alone(
    ctl: Ctl, operators: Operators, pipe: Path, option: str, tmp_path: Path
) -> None:
    given = {name: str(tmp_path / "file") for name in ("--ca", "--certificate", "--key")}
    (tmp_path / "file").touch()
    given[option] = str(pipe)
    ran = ctl("status", *(word for pair in given.items() for word in pair))
    assert ran.code == 2
    assert f"{pipe} is no regular file. Nothing was asked" in ran.err
    assert operators.asked == []


def test_a_device_is_refused_by_name(ctl: Ctl) -> None:
    ran = ctl("validate", "/dev/zero")
    assert ran.code == 2
    assert "/dev/zero is neither a file nor a pipe; nothing was done" in ran.err
