"""deploy/lo-only: loopback only, and nothing outlives the command.

Each test runs a small shell script inside. A child that it leaves behind holds the write end of a
pipe whose read end stays here, so the pipe's end of file is the proof that the child has died.
"""

import os
import pty
import select
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

LO_ONLY = str(ROOT / "deploy" / "lo-only")
DEADLINE_S = 20.0

pytestmark = pytest.mark.processes


@dataclass(frozen=True, slots=True)
class Witness:
    """A pipe that ends when the last process that inherited it has died."""

    read_end: int
    write_end: int

    def release(self) -> None:
        """Let go of our own write end, after those who should hold it have been started."""
        os.close(self.write_end)

    def tells_of_death(self) -> bool:
        """Wait until nobody holds the pipe, or the deadline."""
        readable, _, _ = select.select([self.read_end], [], [], DEADLINE_S)
        return bool(readable) and os.read(self.read_end, 1) == b""


@pytest.fixture
def witness() -> Iterator[Witness]:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)  # noqa: FBT003 - it has no keyword
    yield Witness(read_end, write_end)
    os.close(read_end)


def start(script: str, *options: str, terminal: int | None = None) -> subprocess.Popen[str]:
    """Run a shell script inside; with `terminal` as the one it is controlled from."""
    return subprocess.Popen(
        [LO_ONLY, *options, "sh", "-c", script],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        close_fds=False,
    )


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_only_loopback_is_there_and_the_exit_code_is_kept() -> None:
    with start("ip -brief link; exit 7") as ran:
        out, complaints = ran.communicate(timeout=DEADLINE_S)
        assert [line.split()[0] for line in out.splitlines()] == ["lo"], complaints
        assert ran.returncode == 7


def test_a_child_left_behind_dies_when_the_command_ends(witness: Witness) -> None:
    with start("setsid sleep 600 >/dev/null 2>&1 & exit 0") as ran:
        witness.release()
        ran.communicate(timeout=DEADLINE_S)
        assert witness.tells_of_death()


def test_sigterm_reaches_the_command_and_then_all_is_gone(witness: Witness) -> None:
    script = "setsid sleep 600 >/dev/null 2>&1 & trap 'echo cleaned; exit 3' TERM; echo ready; wait"
    with start(script) as ran:
        witness.release()
        assert next_line(ran) == "ready"
        ran.terminate()
        assert next_line(ran) == "cleaned"
        ran.communicate(timeout=DEADLINE_S)
        assert ran.returncode == 3
        assert witness.tells_of_death()


def test_killing_it_outright_takes_everything_down(witness: Witness) -> None:
    with start("setsid sleep 600 >/dev/null 2>&1 & echo ready; wait") as ran:
        witness.release()
        assert next_line(ran) == "ready"
        ran.kill()
        ran.communicate(timeout=DEADLINE_S)
        assert witness.tells_of_death()


def test_another_command_joins_it_by_name(tmp_path: Path) -> None:
    name = tmp_path / "run.pid"
    with start("echo ready; read -r end", "--name", str(name), terminal=subprocess.PIPE) as ran:
        assert next_line(ran) == "ready"
        joined = subprocess.run(
            [LO_ONLY, "--join", str(name), "ip", "-brief", "link"],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        )
        ran.communicate("end\n", timeout=DEADLINE_S)
        assert [line.split()[0] for line in joined.stdout.splitlines()] == ["lo"]
        assert not name.exists()


def test_ctrl_c_reaches_the_command_once(witness: Witness) -> None:
    child, terminal = pty.fork()
    if child == 0:
        script = "trap 'echo cleaned; exit 3' INT; setsid sleep 600 & echo ready; wait"
        os.execv(LO_ONLY, [LO_ONLY, "sh", "-c", script])
    witness.release()
    read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    said = read_until(terminal, b"cleaned")
    assert said.count(b"cleaned") == 1
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    os.close(terminal)
    assert witness.tells_of_death()


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What the terminal shows, up to the wanted words."""
    said = b""
    while wanted not in said:
        readable, _, _ = select.select([terminal], [], [], DEADLINE_S)
        assert readable, f"waited for {wanted!r}, saw {said!r}"
        said += os.read(terminal, 1024)
    return said
