"""Prometheus and Alertmanager as processes, and the webhook that hears alerts."""

import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.host.processes import await_so, free_port, is_alive

END_S = 20.0
ALERTMANAGER = """
route: {receiver: hook, group_by: ['...'], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}
receivers: [{name: hook, webhook_configs: [{url: 'URL', send_resolved: true}]}]
"""


def hurried(rules: str) -> str:
    """The rules with seconds for minutes: every wait 1 s, every range 30 s; nothing else."""
    rules = re.sub(r"for: \d+[smhd]", "for: 1s", rules)
    rules = re.sub(r"\[\d+[mhd]\]", "[30s]", rules)
    rules = re.sub(r"offset \d+m", "offset 3s", rules)
    return re.sub(r"\* 60\b", "* 1", rules)


@dataclass
class Heard:
    """What the webhook was told, in order: (status, alert, labels)."""

    told: list[tuple[str, str, dict[str, str]]] = field(default_factory=list[Any])

    def has(self, status: str, alert: str, **labels: str) -> bool:
        """Whether an alert was told with this status and these labels."""
        return any(
            (status, alert) == (was, name) and labels.items() <= told.items()
            for was, name, told in self.told
        )

    def newest(self, alert: str, **labels: str) -> str:
        """What was told last of an alert with these labels; empty where nothing was."""
        told = (
            s for s, name, all_ in self.told if name == alert and labels.items() <= all_.items()
        )
        return deque(told, 1).pop() if self.has("firing", alert, **labels) else ""


@contextmanager
def webhook() -> Generator[tuple[str, Heard]]:
    """A receiver of alerts; yields its address and what it heard."""
    heard = Heard()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for alert in body["alerts"]:
                labels = alert["labels"]
                heard.told.append((alert["status"], labels["alertname"], labels))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join(END_S)


@contextmanager
def process(log: Path, command: Sequence[str], is_up: Callable[[], bool]) -> Generator[int]:
    """Run a server until the block ends; it is ended by its pid, which is yielded."""
    with log.open("wb") as out:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def is_ready() -> bool:
        assert running.poll() is None, log.read_text(errors="replace")[-3000:]
        return is_up()

    try:
        await_so(is_ready, within_s=30, what=f"{command[0]} is up")
        yield running.pid
    finally:
        if is_alive(running.pid):
            os.kill(running.pid, 15)
        try:
            running.wait(END_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(END_S)


def answers(url: str) -> bool:
    """Whether something answers there."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


class Prometheus:
    """A running one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.pid = 0

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Evaluate an instant query; returns its series."""
        where = f"{self.url}/api/v1/query?query={urllib.parse.quote(expr)}"
        with urllib.request.urlopen(where, timeout=30) as answer:
            return json.load(answer)["data"]["result"]


@contextmanager
def prometheus(
    folder: Path, targets: dict[str, tuple[str, *tuple[int, ...]]], *, rules: str, hook: str
) -> Generator[Prometheus]:
    """Prometheus and Alertmanager, with the rules.

    targets    path and ports by job
    """
    port, manager = free_port(), free_port()
    (folder / "eplb.rules.yaml").write_text(rules)
    (folder / "alertmanager.yml").write_text(ALERTMANAGER.replace("URL", hook))
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "eplb.rules.yaml")],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager}"]}]}]
        },
        "scrape_configs": [
            {
                "job_name": job,
                "metrics_path": path,
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
            }
            for job, (path, *ports) in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    alertmanager = [
        "prometheus-alertmanager",
        f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/alerts",
        f"--web.listen-address=127.0.0.1:{manager}",
        "--cluster.listen-address=",
    ]
    server = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
        "--rules.alert.resend-delay=1s",
    ]
    found = Prometheus(port)
    with (
        process(
            folder / "alertmanager.log",
            alertmanager,
            lambda: answers(f"http://127.0.0.1:{manager}/-/ready"),
        ),
        process(folder / "prometheus.log", server, lambda: answers(f"{found.url}/-/ready")) as pid,
    ):
        found.pid = pid
        yield found
