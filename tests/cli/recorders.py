"""A recorder as another terminal would run it."""

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def recorder(path: Path) -> Generator[subprocess.Popen[str]]:
    """A recorder in a process of its own, that has written its first window."""
    words = ("record", "start", str(path), "--every", "0.1s")
    process = subprocess.Popen(
        [sys.executable, "-m", "eplb_service.cli.entry", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until and process.poll() is None:
            time.sleep(0.05)
        assert path.exists(), "it recorded nothing"
        yield process
    finally:
        process.kill()
        process.communicate()
