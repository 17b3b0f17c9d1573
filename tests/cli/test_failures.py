"""Every failure has its exit code, a word and a sentence that helps; answers stay on stdout."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from eplb_service.domain import errors
from tests.cli.conftest import Ctl
from tests.server.desks import Operators

ROOT = Path(__file__).parents[2]
SOUND = (
    '{"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_count": 1, "device_list": '
    '[{"device_id": 0, "device_expert": [0, 1]}]}]}'
)


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (errors.UnknownPlan("no plan is called 9"), 1, "failed"),
        (errors.UnknownDeployment("nobody is called so"), 1, "failed"),
        (errors.PlannerFailed("the policy raised"), 1, "failed"),
        (errors.PlanRejected("plan 7f3a was judged no by move_budget"), 1, "refused"),
        (errors.InvalidRequest("makes no sense"), 2, "invalid"),
        (errors.MisfitPlacement("5 layers, expected 4"), 2, "invalid"),
        (errors.DeploymentFrozen("frozen until noon"), 3, "refused"),
        (errors.PlanOvertaken("epoch 42 is served"), 3, "refused"),
        (errors.NotLeader("another controller leads"), 3, "refused"),
        (errors.DeploymentBusy("plan 6b runs"), 3, "refused"),
        (errors.StoreUnavailable("the store is locked"), 5, "no answer"),
        (errors.PlannerTimeout("20 s are over"), 5, "no answer"),
    ],
    ids=lambda value: value.code if isinstance(value, errors.EplbError) else None,
)
def test_a_refusal_keeps_the_controllers_words(
    ctl: Ctl, operators: Operators, error: errors.EplbError, code: int, word: str
) -> None:
    operators.wrong = error
    ran = ctl("apply", "7f3a")
    assert (ran.code, ran.out, ran.err) == (code, "", f"{word}: {error}\n")


def test_a_fault_of_the_controller_is_a_failure(ctl: Ctl, operators: Operators) -> None:
    operators.wrong = RuntimeError("secret")
    ran = ctl("status")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("failed: the controller failed on this call")


def test_an_endpoint_where_nobody_listens_is_told_with_what_to_do(ctl: Ctl) -> None:
    ran = ctl("status", "--endpoint", "127.0.0.1:1")
    assert ran.code == 5
    assert ran.err.startswith(
        "no answer: no controller answers at 127.0.0.1:1 (Connection refused); is it running, "
        "and is the endpoint right? Set it with --endpoint HOST:PORT or EPLB_ENDPOINT"
    )


def test_an_act_that_is_not_answered_in_time_says_how_to_ask_again(
    ctl: Ctl, silent_endpoint: str
) -> None:
    words = ("--timeout", "0.2s", "--request-id", "r1", "--endpoint", silent_endpoint)
    ran = ctl("apply", "7f3a", *words)
    assert ran.code == 5
    assert "did not answer within 0.2s" in ran.err
    assert "ask again with --request-id r1, the same id acts once unless" in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "the following arguments are required: VERB"),
        (["dance"], "invalid choice: 'dance'"),
        (["apply"], "the following arguments are required: PLAN"),
        (["freeze"], "the following arguments are required: --for"),
        (["freeze", "--for", "30"], "for example 90s, 30m, 2h"),
        (["status", "--endpoint", "here"], "write HOST:PORT, for example 127.0.0.1:50051"),
        (["status", "--timeout", "soon"], "for example 90s, 30m, 2h"),
        (["status", "-o", "xml"], "invalid choice: 'xml'"),
        (["heat", "--layer", "7-3"], "write the smaller one first"),
        (["heat", "--layer", "all"], "for example 3, 0-7 or 0,4,8-11"),
        (["rollback", "--to", "-1"], "argument --to"),
        (["resume", "now"], "no whole number"),
        (["config", "set", "budget.max_moves"], "write NAME=VALUE, for example"),
        (["plan", "--force"], "unrecognized arguments: --force"),
        (["history", "--limit", "99999999999"], "from 0 to 2147483647"),
        (["heat", "--layer", "99999999999"], "from 0 to 2147483647"),
        (["rollback", "--to", "9" * 30], "from 0 to 9223372036854775807"),
        (["export", "--epoch", "9" * 30], "from 0 to 9223372036854775807"),
        (["resume", "9" * 30], "from 0 to 9223372036854775807"),
        (["apply", "a\udcff"], "no text in UTF-8"),
        (["freeze", "--for", "1h", "--reason", "\udc80"], "no text in UTF-8"),
    ],
)
def test_words_that_make_no_sense_end_with_2_and_an_example(
    ctl: Ctl, operators: Operators, words: list[str], says: str
) -> None:
    ran = ctl(*words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert operators.asked == []


def test_an_endpoint_in_the_environment_is_checked_too(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPLB_ENDPOINT", "here")
    ran = ctl("status")
    assert (ran.code, ran.err.startswith("invalid: EPLB_ENDPOINT: 'here' is no endpoint")) == (
        2,
        True,
    )


def test_a_file_that_cannot_be_read_is_never_sent(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    ran = ctl("import", str(tmp_path / "gone.json"))
    assert ran.code == 2
    assert "gone.json cannot be read: No such file" in ran.err
    assert operators.asked == []


@pytest.mark.parametrize(
    "verb",
    [
        "status", "heat", "plan", "apply", "rebalance", "explain", "history", "abort",
        "rollback", "freeze", "unfreeze", "resume", "config", "export", "import", "map",
    ],
)  # fmt: skip
def test_every_verb_helps_with_an_example(ctl: Ctl, verb: str) -> None:
    ran = ctl(verb, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"example: eplbctl {verb}" in ran.out
    assert f"\n    {verb} " in ctl("--help").out


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("words", [("map", "validate", "FILE"), ("--help",)])
def test_an_answer_that_cannot_be_written_is_a_failure(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "FILE").write_text(SOUND)
    command = [sys.executable, "-m", "eplb_service.cli.main", *words]
    env = {"PYTHONPATH": f"{ROOT}:{ROOT}/proto/gen", "PATH": ""}
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env=env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr == (
        "failed: the answer cannot be written: No space left on device; "
        "the command itself was carried out\n"
    )


@pytest.mark.processes
@pytest.mark.slow
def test_ctrl_c_while_it_starts_ends_with_130_and_no_trace() -> None:
    """The signal comes while modules are still being loaded, which takes most of a second."""
    script = (
        "import os, signal, sys, importlib.abc\n"
        "class Interrupts(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'grpc':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from eplb_service.cli.entry import main\n"
        "sys.exit(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "status"],
        cwd=ROOT,
        env={"PYTHONPATH": ".:proto/gen", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (
        130,
        "",
        "interrupted before anything was asked\n",
    )


@pytest.mark.processes
@pytest.mark.slow
def test_ctrl_c_ends_with_130() -> None:
    """A command that waits for a server which accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        command = [sys.executable, "-m", "eplb_service.cli.main", "status"]
        with subprocess.Popen(
            [*command, "--endpoint", f"127.0.0.1:{port}"],
            cwd=ROOT,
            env={"PYTHONPATH": ".:proto/gen", "PATH": ""},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            silent.settimeout(30)
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=30)
            connection.close()
    assert process.returncode == 130, complaints
    assert complaints == "interrupted\n"
