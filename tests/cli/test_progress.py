"""Long work shows how far it is on a terminal, and nothing of it in a pipe."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from eplb_service.controller.views import RunView
from tests.cli.conftest import Serving
from tests.server import views
from tests.server.desks import Operators

WITHIN_S = 120.0
BAR = "[###"


class Told(NamedTuple):
    """How a command ended, and what was written where."""

    code: int
    out: str
    err: str


def run(*words: str, on_terminal: bool, **environment: str) -> Told:
    """Run eplbctl in a process of its own, with a terminal or a pipe at its stderr."""
    command = [sys.executable, "-m", "eplb_service.cli.entry", *words]
    whole = {**os.environ, **environment}
    if not on_terminal:
        done = subprocess.run(
            command, capture_output=True, text=True, env=whole, timeout=WITHIN_S, check=False
        )
        return Told(done.returncode, done.stdout, done.stderr)
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=whole) as process:
        os.close(theirs)
        seen = b"".join(_read(ours))
        out, _ = process.communicate(timeout=WITHIN_S)
    os.close(ours)
    return Told(process.returncode, out.decode(), seen.decode())


def _read(terminal: int) -> Iterator[bytes]:
    """What is written to a terminal until whoever writes has gone."""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other end is closed
            return
        if not data:
            return
        yield data


@pytest.fixture
def counts(tmp_path: Path) -> str:
    """A file of three windows."""
    path = tmp_path / "counts.npz"
    np.savez(path, counts=np.random.default_rng(0).integers(1, 1000, (3, 2, 16)))
    return str(path)


@pytest.mark.parametrize("verb", ["simulate", "replay"])
@pytest.mark.slow
def test_what_is_computed_draws_a_bar_on_a_terminal_only(counts: str, verb: str) -> None:
    words = (verb, counts, "--ranks", "4", "--redundancy", "0,4", "-o", "json")
    shown, piped = (run(*words, on_terminal=on) for on in (True, False))
    assert shown.code == piped.code == 0
    assert BAR in shown.err
    assert shown.err.endswith("\r\x1b[K"), "it is gone at the end"
    assert piped.err == ""
    assert json.loads(shown.out) == json.loads(piped.out)
    assert BAR not in shown.out


@pytest.mark.parametrize("where", ["terminal", "pipe"])
def test_waiting_for_a_plan_shows_what_has_moved(
    one_server: Serving, operators: Operators, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    left = [replace(views.a_run(), phase="running", moves=3)] * 2

    async def moving(_deployment: str, _plan_id: str) -> RunView:
        return left.pop() if left else replace(views.a_run(), phase="done", text="")

    monkeypatch.setattr(operators, "run", moving)
    endpoint = f"127.0.0.1:{one_server.port}"
    on_terminal = where == "terminal"
    told = run("apply", "7f3a", "--wait", on_terminal=on_terminal, EPLB_ENDPOINT=endpoint)
    assert told.code == 0
    assert ("3 slots moved" in told.err) is on_terminal
    assert bool(told.err) is on_terminal


@pytest.mark.slow
def test_a_recording_tells_a_terminal_how_long_it_goes_on(
    one_server: Serving, operators: Operators, tmp_path: Path
) -> None:
    del operators
    endpoint = f"127.0.0.1:{one_server.port}"
    words = ("--every", "0.1s", "--for", "0.6s")
    shown, piped = (
        run("record", "start", str(tmp_path / name), *words, on_terminal=on, EPLB_ENDPOINT=endpoint)
        for name, on in (("shown.npz", True), ("piped.npz", False))
    )
    assert shown.code == piped.code == 0
    assert "1 window, " in shown.err
    assert BAR in shown.err
    assert piped.err == ""
