"""The demo's page is reached from outside of its network, and from this machine alone."""

import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.host.processes import ROOT, await_so, free_port

LO_ONLY = str(ROOT / "deploy" / "lo-only")
WITHIN_S = 60.0
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_browser_outside_sees_what_is_served_inside(tmp_path: Path) -> None:
    name, port = tmp_path / "demo.pid", free_port()
    (tmp_path / "index.html").write_text("the page")
    serve = ["-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    inside = [LO_ONLY, "--name", str(name), sys.executable, *serve]
    window = [sys.executable, "-m", "benchmarks.demo.window", str(name), "--port", str(port)]
    with subprocess.Popen(inside, stderr=subprocess.DEVNULL) as served:
        try:
            await_so(name.exists, within_s=WITHIN_S, what="a name")
            with subprocess.Popen(window, cwd=ROOT, stdout=subprocess.PIPE, text=True) as opened:
                try:
                    assert opened.stdout
                    assert f"http://127.0.0.1:{port}/" in opened.stdout.readline()
                    await_so(lambda: page(port) == "the page", within_s=WITHIN_S, what="the page")
                finally:
                    opened.terminate()
        finally:
            served.terminate()


def page(port: int) -> str:
    """What a browser would get; empty where the server is not there yet."""
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/", timeout=10) as found:
            return found.read().decode()
    except OSError:
        return ""


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    name = tmp_path / "demo.pid"
    name.write_text("none\n")
    command = [sys.executable, "-m", "benchmarks.demo.window", str(name), "--port", "1"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        command[-1] = str(other.getsockname()[1])
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be taken" in done.stderr
