"""Waiting outlives a controller that restarts; its own deadline is what ends it."""

import os
import pty
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from eplb_service.cli.main import main
from eplb_service.domain import errors
from tests.cli.conftest import Ctl, Serving
from tests.server import views
from tests.server.desks import Operators


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


@pytest.fixture
def restarting() -> Iterator[str]:
    """An endpoint where nobody listens at first, and a settled controller a second later."""
    port, made = free_port(), list[Serving]()

    def start() -> None:
        serving = Serving(port=port)
        serving.operators.statuses = (views.a_settled_status(),)
        made.append(serving)

    timer = threading.Timer(1.0, start)
    timer.start()
    yield f"127.0.0.1:{port}"
    timer.join()
    for serving in made:
        serving.close()


def test_wait_goes_on_asking_where_nobody_answers_yet(
    restarting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(("wait", "--endpoint", restarting, "--timeout", "20s"))
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    assert "epoch 41" in said.out


def test_wait_says_at_its_deadline_that_nobody_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    began_s = time.monotonic()
    code = main(("wait", "--endpoint", "127.0.0.1:1", "--timeout", "1.2s"))
    err = capsys.readouterr().err
    assert code == 5
    assert time.monotonic() - began_s > 0.6, "it asked once and gave up"
    assert "what was waited for (settled) is not over after 1.2s, and at the last look" in err
    assert "no controller answers at 127.0.0.1:1 (Connection refused)" in err


@pytest.mark.parametrize(
    "words",
    [("apply", "7f3a", "--wait"), ("rebalance", "--wait"), ("rollback", "--wait")],
    ids=lambda words: words[0],
)
@pytest.mark.slow
def test_a_plan_is_waited_for_while_the_controller_restarts(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    first = Serving()
    assert first.operators.ran.phase == "running"
    made: list[Serving] = []

    def restart() -> None:
        first.close()
        time.sleep(1.0)
        again = Serving(port=first.port)
        again.operators.ran = replace(views.a_run(), phase="done")
        made.append(again)

    timer = threading.Timer(1.0, restart)
    timer.start()
    code = main((*words, "--endpoint", f"127.0.0.1:{first.port}", "--timeout", "20s"))
    timer.join()
    for serving in made:
        serving.close()
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    assert "done" in said.out


def test_the_first_call_of_a_changing_verb_fails_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    began_s = time.monotonic()
    code = main(("rebalance", "--wait", "--endpoint", "127.0.0.1:1", "--timeout", "30s"))
    assert code == 5
    assert time.monotonic() - began_s < 10
    assert "no controller answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("watch", "--count", "6"), ("top", "--every", "0.1s")], ids=lambda words: words[0]
)
@pytest.mark.slow
def test_what_is_looked_at_on_and_on_outlives_a_controller(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    first, made = Serving(), list[Serving]()
    first.operators.statuses = (views.a_settled_status(),)
    num_known = len(views.a_history().entries)
    assert num_known < 6, "watch would have seen enough before the controller went"

    def restart() -> None:
        first.close()
        time.sleep(1.0)
        again = Serving(port=first.port)
        again.operators.statuses = (replace(views.a_settled_status(), epoch=77),)
        made.append(again)

    timer = threading.Timer(1.0, restart)
    timer.start()
    code = main((*words, "--endpoint", f"127.0.0.1:{first.port}", "--timeout", "6s"))
    timer.join()
    for serving in made:
        serving.close()
    said = capsys.readouterr()
    assert code == 0, said.err
    assert said.err.count("no controller answers at") == 1, "said once, and not at every look"
    assert "it is asked on and on" in said.err
    assert "answers again" in said.err
    if words[0] == "top":
        assert "epoch 77" in said.out


@pytest.mark.parametrize("words", [("watch",), ("top",)], ids=lambda words: words[0])
def test_what_nobody_ever_answered_is_not_looked_at_again(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main((*words, "--endpoint", "127.0.0.1:1", "--timeout", "30s"))
    assert code == 5
    assert "no controller answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [errors.NotLeader("nobody leads yet"), errors.StoreUnavailable("the store is locked")],
    ids=lambda error: error.code,
)
def test_a_controller_that_just_comes_up_is_asked_again(
    ctl: Ctl, operators: Operators, error: errors.EplbError
) -> None:
    operators.wrong = error
    ran = ctl("wait", "--timeout", "0.7s")
    assert ran.code == 5
    assert f"and at the last look {error}" in ran.err


def test_a_deployment_that_never_was_is_not_waited_for(ctl: Ctl, operators: Operators) -> None:
    operators.wrong = errors.UnknownDeployment("nobody is called so")
    ran = ctl("wait", "--timeout", "30s")
    assert (ran.code, ran.err) == (1, "failed: nobody is called so\n")


def test_a_terminal_shows_that_nobody_answers_just_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        main(("wait", "--endpoint", "127.0.0.1:1", "--timeout", "0.8s"))
        terminal.flush()
        shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert "the controller does not answer just now" in shown
