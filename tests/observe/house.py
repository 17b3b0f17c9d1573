"""A real controller in a process of its own, with scripted groups that a test's thread tells."""

import asyncio
import json
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TypeVar
from uuid import uuid4

import grpc
import numpy as np
from eplb.v1 import admin_pb2, admin_pb2_grpc

from eplb_service.domain.ids import FloatArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement
from tests.host.processes import free_port, service
from tests.observe.scripted import TURN_S, ScriptedGroup

T = TypeVar("T")
CALL_S = 240.0

Section = dict[str, str | float | bool]


def settings_of(folder: Path, *, metrics_port: int, **sections: Section) -> dict[str, Section]:
    """Settings of a controller that plans only when it is asked, with short windows."""
    base: dict[str, Section] = {
        "server": {"port": free_port(), "metrics_port": metrics_port, "expert_metrics": True},
        "store": {"url": f"sqlite:///{folder / 'eplb.db'}", "deadline_s": 1.0},
        "planning": {"is_automatic": False, "interval_s": 1.0, "deadline_s": CALL_S},
        "window": {"report_every_steps": 10, "interval_steps": 10, "num_intervals": 3},
        "gates": {"min_steps": 20, "cooldown_s": 0.0},
        "protocol": {"nudge_interval_s": 0.5, "wave_deadline_s": 60.0},
        "shares": {},
        "leading": {},
    }
    return {name: {**values, **sections.get(name, {})} for name, values in base.items()}


def flat(*, layers: int, experts: int, ranks: int, slots: int) -> Placement:
    """The placement that an engine begins with."""
    layout = SlotLayout((slots,) * ranks)
    return initial_placement(num_layers=layers, num_experts=experts, layout=layout)


def skewed_heat(placement: Placement, *, skew: float = 6.0) -> FloatArray:
    """[L, E] tokens of one turn: the first expert of each layer is `skew` times as hot."""
    heat = np.full((placement.num_layers, placement.num_experts), 100.0)
    heat[:, 0] *= skew
    return heat


class House:
    """One controller, by its addresses, and what its groups and operators do."""

    def __init__(self, endpoint: str, metrics_port: int, pid: int) -> None:
        self.endpoint = endpoint
        self.metrics_port = metrics_port
        self.pid = pid
        self.url = f"http://127.0.0.1:{metrics_port}"
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="groups", daemon=True)
        self._thread.start()
        self._stops: list[asyncio.Event] = []
        self._serving: list[Future[None]] = []
        self._groups: list[ScriptedGroup] = []
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 << 20)]
        self._channel = grpc.insecure_channel(endpoint, options=options)
        self.admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    def do(self, work: Coroutine[None, None, T]) -> T:
        """Do something in the groups' thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def serve(
        self, name: str, placement: Placement, heat: FloatArray, *, every_s: float = TURN_S
    ) -> ScriptedGroup:
        """Let a group greet and serve until the house is closed, a turn in so many seconds."""

        async def begin() -> tuple[ScriptedGroup, asyncio.Event]:
            group = ScriptedGroup(self.endpoint, name, placement, heat)
            await group.connect()
            return group, asyncio.Event()

        group, stop = self.do(begin())
        self._groups.append(group)
        self._stops.append(stop)
        serving = asyncio.run_coroutine_threadsafe(group.serve(stop, every_s), self._loop)
        self._serving.append(serving)
        return group

    def act(self, name: str, reason: str) -> admin_pb2.Act:
        """What every changing call carries."""
        return admin_pb2.Act(deployment=name, request_id=uuid4().hex, who="ada", reason=reason)

    def plan(self, name: str, policy: str, reason: str) -> str:
        """Draw a plan; returns its id."""
        spec = admin_pb2.PlanSpec(deployment=name, policy=policy, reason=reason, who="bob")
        drawn = self.admin.Plan(admin_pb2.PlanRequest(spec=spec), timeout=CALL_S)
        return drawn.answer.plan.plan.plan_id

    def apply(self, name: str, policy: str, reason: str) -> str:
        """Draw a plan and start it; returns its id."""
        plan_id = self.plan(name, policy, reason)
        act = self.act(name, reason)
        self.admin.Apply(admin_pb2.ApplyRequest(act=act, plan_id=plan_id), timeout=CALL_S)
        return plan_id

    def status(self, name: str) -> admin_pb2.DeploymentStatus:
        """How a deployment stands."""
        request = admin_pb2.StatusRequest(deployment=name)
        (only,) = self.admin.Status(request, timeout=CALL_S).deployments
        return only

    def has_window(self, name: str) -> bool:
        """Whether the deployment has a window that carries a plan."""
        return self.status(name).window.num_steps >= 20

    def close(self) -> None:
        """End all groups."""
        for stop in self._stops:
            self._loop.call_soon_threadsafe(stop.set)
        for serving in self._serving:
            serving.result(30)
        for group in self._groups:
            self.do(group.close())
        self._channel.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


@contextmanager
def house(folder: Path, *, metrics_port: int = 0, **sections: Section) -> Generator[House]:
    """Start a controller; at the end it and its groups are ended.

    metrics_port    0 takes any free one
    """
    metrics_port = metrics_port or free_port()
    settings = settings_of(folder, metrics_port=metrics_port, **sections)
    config = folder / f"settings-{metrics_port}.json"
    config.write_text(json.dumps(settings))
    with service(
        folder / f"controller-{metrics_port}.log", "run", "--config", str(config)
    ) as command:
        home = House(command.await_endpoint(), metrics_port, command.process.pid)
        try:
            yield home
        finally:
            home.close()
