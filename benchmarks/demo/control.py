"""The controller of the demo: an actor on a local Ray, with its store in a folder of its own."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.demo.model import AGREE_EVERY

__all__ = ["ControllerFailed", "ControllerProcess", "SettingsTree", "demo_settings"]

SettingsTree = Mapping[str, Mapping[str, str | float | bool]]
"""Sections of the service's settings, as its file has them."""

_START_S = 90.0
_LOOK_S = 0.1
_END_S = 15.0
_ADDRESS = re.compile(r"^controller +(\S+) +metrics +(\S+)", re.MULTILINE)


class ControllerFailed(Exception):
    """The controller did not start; the text has the end of its log."""


class ControllerProcess:
    """`eplb-service`, as a process that is ended by its own pid. Use it in a `with`.

    on_ray      as an actor on a local Ray, or as a plain process
    settings    those of the service, beside the place of its store
    """

    def __init__(
        self, folder: Path, log: Path, settings: SettingsTree, *, on_ray: bool = True
    ) -> None:
        self._verb = "up" if on_ray else "run"
        self._settings = {**settings, "store": {"url": f"sqlite:///{folder / 'eplb.db'}"}}
        self.endpoint = ""
        self.metrics_url = ""
        self._folder = folder
        self._log = log

    def __enter__(self) -> Self:
        config = self._folder / "settings.json"
        config.write_text(json.dumps(self._settings))
        service = [sys.executable, "-m", "eplb_service.host.main"]
        command = [*service, self._verb, "--config", str(config)]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,  # Ctrl-C reaches it through us, once ranks are ended
            )
        try:
            self._await_address()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _await_address(self) -> None:
        """Wait until the controller has said where it listens. Raises ControllerFailed."""
        give_up_at = time.monotonic() + _START_S
        while not (found := _ADDRESS.search(self._said())):
            if time.monotonic() > give_up_at:
                raise ControllerFailed(
                    f"the controller was not up in {_START_S:.0f} s:\n{self._said()[-2000:]}"
                )
            try:
                code = self._process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            raise ControllerFailed(
                f"the controller ended with exit code {code}:\n{self._said()[-2000:]}"
            )
        self.endpoint, self.metrics_url = found.groups()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_S)


def _environment() -> Mapping[str, str]:
    """Keep Ray on the loopback interface and to itself."""
    return {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "PYTHONUNBUFFERED": "1",
    }


def demo_settings(*, known_ports: bool) -> SettingsTree:
    """Return settings at which a demo of a minute shows what a day shows elsewhere.

    known_ports    the ports that eplbctl looks at by itself, or any that are free
    """
    return {
        "server": {} if known_ports else {"port": 0, "metrics_port": 0},
        "planning": {"interval_s": 1.0, "policy": "connected"},
        "shares": {"interval_s": 1.0},
        "gates": {
            "trigger_imbalance": 1.05,
            "trigger_worst_layer": 1.08,
            "min_gain": 0.02,
            "min_steps": 40,
            "cooldown_s": 2.0,
        },
        "window": {
            "report_every_steps": 10,
            "interval_steps": 20,
            "num_intervals": 3,
            "sent_every_reports": 2,
        },
        "protocol": {"agree_every": AGREE_EVERY},
    }
