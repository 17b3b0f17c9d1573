"""Ctrl-C takes down everything that the demo started."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
INTERRUPTED = 130


def members(session: int) -> list[int]:
    """Pids of all processes of one session; one that has ended and waits to be reaped is none."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            if int(after_name[3]) == session and after_name[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.processes
@pytest.mark.slow
def test_ctrl_c_ends_every_process_of_the_demo(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.demo.main", "--summary", str(tmp_path / "summary.json")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    try:
        # Ranks serve the comparison; Ray has not been started yet.
        said = next(line for line in demo.stdout if line.startswith("serving"))
        started = [pid for pid in members(demo.pid) if pid != demo.pid]
        handles = [os.pidfd_open(pid) for pid in started]
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=DEADLINE_S)
    finally:
        demo.kill()
        demo.wait(DEADLINE_S)

    assert "without a control plane" in said
    assert demo.returncode == INTERRUPTED
    assert "everything is taken down" in rest
    assert len(started) >= 9  # eight ranks and the server that forks them
    for handle in handles:
        ended, _, _ = select.select([handle], [], [], DEADLINE_S)
        os.close(handle)
        assert ended
    assert members(demo.pid) == []
