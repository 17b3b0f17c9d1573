"""The controller as a process of its own, and an operator's view of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import grpc
from eplb.v1 import admin_pb2, admin_pb2_grpc

from eplb_service.domain.errors import NotLeader
from eplb_service.server.status import CODE_KEY
from tests.host.processes import await_so, descendants, free_port, is_alive
from tests.system.rank import AGREE_EVERY

SERVICE = "eplb_service.host.main"
START_S = 60.0
END_S = 20.0
CALL_S = 30.0
EXPIRY_STEPS = 600
REPORT_EVERY = 10


class ControllerFailed(Exception):
    """It did not start; the text has the end of its log."""


class ControllerProcess:
    """`eplb-service` on one port and one store, started as often as a test wants.

    store      its file; None: one in `folder`
    leading    settings of who leads; None: the defaults
    more       further sections of settings
    main       module that is run as the program
    """

    def __init__(
        self,
        folder: Path,
        verb: str = "run",
        *,
        store: Path | None = None,
        leading: Mapping[str, bool | float] | None = None,
        port: int | None = None,
        more: Mapping[str, object] | None = None,
        main: str = SERVICE,
    ) -> None:
        self.port = port or free_port()
        self.store = store or folder / "eplb.db"
        self._verb = verb
        self.main = main
        self._config = folder / "settings.json"
        told = settings(self.port, self.store) | {"leading": dict(leading or {})} | dict(more or {})
        self._config.write_text(json.dumps(told))
        self._log = folder / "controller.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the command's process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it leads."""
        self.launch()
        self.await_lead()

    def launch(self) -> None:
        """Start it; one that stands by may not lead for long."""
        command = [sys.executable, "-m", self.main, self._verb]
        log = self._log.open("ab")
        self._before = self._log.stat().st_size
        with log:
            self._process = subprocess.Popen(
                [*command, "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
            )

    def await_lead(self) -> None:
        """Wait until it has led since it was started."""
        process = self._process
        assert process is not None

        def is_up() -> bool:
            said = self._log.read_text(errors="replace")[self._before :]
            if process.poll() is not None:
                raise ControllerFailed(f"exit code {process.returncode}:\n{said[-3000:]}")
            return "controller   " in said

        await_so(is_up, within_s=START_S, what=f"the controller is up, see {self._log}")

    def said(self) -> str:
        """Everything that it wrote."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill -9, and everything that it started, each by its pid."""
        if self._process is None:
            return
        family = (self._process.pid, *descendants(self._process.pid))
        for pid in filter(is_alive, family):
            with suppress(ProcessLookupError):  # its parent's end was its own
                os.kill(pid, signal.SIGKILL)
        self._process.wait(END_S)

    def end(self) -> int:
        """Ask it to end, as an operator does; returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def settings(port: int, store: Path) -> dict[str, object]:
    """Settings for plans that are only drawn when a test asks for one."""
    return {
        "server": {"port": port, "metrics_port": 0},
        "store": {"url": f"sqlite:///{store}", "deadline_s": 2.0},
        "planning": {"is_automatic": False, "deadline_s": 30.0},
        "shares": {"interval_s": 1.0},
        "window": {
            "report_every_steps": REPORT_EVERY,
            "sent_every_reports": 2,
            "interval_steps": 20,
            "num_intervals": 3,
        },
        "protocol": {
            "agree_every": AGREE_EVERY,
            "nudge_interval_s": 0.5,
            "expiry_steps": EXPIRY_STEPS,
        },
    }


class Operator:
    """Asks the controller, as eplbctl does; use `close` at its end."""

    def __init__(self, port: int) -> None:
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 200)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)

    def status(self) -> admin_pb2.DeploymentStatus:
        """How the one deployment stands."""
        answer = self._stub.Status(admin_pb2.StatusRequest(), timeout=CALL_S, wait_for_ready=True)
        (only,) = answer.deployments
        return only

    def move(self) -> str:
        """Move for the sake of moving, whatever the gates say; returns the plan's id."""
        spec = admin_pb2.PlanSpec(policy="random", reason="forced")
        drawn = self._stub.Plan(admin_pb2.PlanRequest(spec=spec), timeout=CALL_S)
        plan_id = drawn.answer.plan.plan.plan_id
        act = admin_pb2.Act(request_id=uuid4().hex, who="test", reason="forced")
        self._stub.Apply(admin_pb2.ApplyRequest(act=act, plan_id=plan_id), timeout=CALL_S)
        return plan_id

    def is_calm(self) -> bool:
        """Every rank is connected, serves the same, and nothing runs."""
        status = self.status()
        ranks = status.ranks
        return (
            status.operation.running.phase != "running"
            and not status.operation.running.wave_phase
            and all(rank.is_connected and rank.phase == "serving" for rank in ranks)
            and {rank.epoch for rank in ranks} == {status.epoch}
        )

    def history(self, kind: str) -> list[str]:
        """Texts of one kind, newest first."""
        answer = self._stub.History(admin_pb2.HistoryRequest(limit=200), timeout=CALL_S)
        return [entry.text for entry in answer.entries if entry.kind == kind]

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def is_refused_by_a_standby(error: grpc.RpcError) -> bool:
    """Whether a controller answered that it does not lead: not yet, or not any more."""
    assert isinstance(error, grpc.Call)
    told = [entry.value for entry in error.trailing_metadata() or () if entry.key == CODE_KEY]
    return told == [NotLeader.code]
