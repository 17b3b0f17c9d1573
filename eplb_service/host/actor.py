"""The controller as a named, detached Ray actor.

After a crash Ray runs `__init__` again and nothing else, so everything starts there.
The name is no lock: a node that Ray has lost may keep its actor alive, and then the
store's fence decides who leads.
"""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import logging
import os
from threading import Timer
from typing import cast

import ray
from ray.actor import ActorHandle

from eplb_service.domain.errors import NotLeader
from eplb_service.host.assembly import Addresses, Service
from eplb_service.host.logs import log_events
from eplb_service.host.planner_ray import RayPlanRunner
from eplb_service.settings.settings import Settings

log = logging.getLogger(__name__)

FAILED = 70
"""Exit code of a controller that could not go on; Ray then starts it anew."""
WORD_S = 1.0
"""From the end of a life to the end of its process, so that `ready` can still say why."""
KILL_S = 10.0
"""Within this Ray has ended a fenced actor, unless Ray is gone itself."""


class ControllerActor:
    """Hosts one controller; the actor's event loop is the controller's."""

    def __init__(self, settings: str) -> None:
        """Start serving; `settings` is the settings tree as JSON."""
        log_events()
        if niceness := os.getpriority(os.PRIO_PROCESS, 0):
            log.warning(
                "controller is niced: on a busy node it starves; start Ray's nodes with "
                "RAY_worker_niceness=0",
                extra={"niceness": niceness},
            )
        self._settings = settings
        self._service: Service | None = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Addresses] = loop.create_future()
        self._life = loop.create_task(self._live(Settings.model_validate_json(settings)))
        self._life.add_done_callback(self._end)

    async def ready(self) -> tuple[str, str, int]:
        """Wait until it leads; returns the fields of its Addresses.

        Raises whatever the start failed with, e.g. BindFailed.
        """
        done, _ = await asyncio.wait({self._ready, self._life}, return_when=asyncio.FIRST_COMPLETED)
        if self._life in done:
            await self._life
        found = self._ready.result()
        return found.endpoint, found.metrics_url, found.pid

    async def ended(self) -> None:
        """Wait until its life ends; raises what ended it, e.g. NotLeader.

        Ray asks again after a crash, so one call watches all lives of one actor.
        """
        await asyncio.wait({self._life})
        await self._life

    async def leave(self) -> None:
        """Finish what runs, or withdraw it, and stop serving; the process is the caller's to end.

        One that does not lead has nothing to finish.
        """
        if self._service and self._service.leave():
            await asyncio.wait({self._life})

    def settings(self) -> str:
        """Return the settings tree that it was started with, as JSON."""
        return self._settings

    def pid(self) -> int:
        """Process id, for those who must end it by its own."""
        return os.getpid()

    async def _live(self, settings: Settings) -> None:
        """Serve until fenced; whatever fails, also at the start, is told by `ready`."""
        self._service = Service(settings, RayPlanRunner())
        await self._service.run(self._ready.set_result)

    def _end(self, life: asyncio.Task[None]) -> None:
        """A controller whose life is over must not look alive: end the process.

        Ray starts it anew, except after a fence: it would fence the one that fenced it,
        that one the same in turn, and so on.
        """
        if life.cancelled():
            return
        error = life.exception()
        if error is None:  # it left, and whoever told it to ends the actor
            return
        log.error("controller ended", exc_info=error)
        loop = asyncio.get_running_loop()
        if isinstance(error, NotLeader):
            self._leaving = loop.create_task(self._end_for_good())
        else:
            loop.call_later(WORD_S, _end_process)

    async def _end_for_good(self) -> None:
        """End so that Ray does not start it anew.

        On a node that Ray has lost, the actor of this very id already lives elsewhere, and it
        is the one that fenced this process: it must not be killed.
        """
        await asyncio.sleep(WORD_S)
        Timer(KILL_S, _end_process).start()
        if await asyncio.to_thread(_is_node_lost):
            _end_process()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _is_node_lost() -> bool:
    """Whether Ray has given up the node of this process, and with it this process."""
    here = ray.get_runtime_context().get_node_id()
    nodes = cast("list[dict[str, object]]", ray.nodes())
    return not any(node["Alive"] and node["NodeID"] == here for node in nodes)


def _end_process() -> None:
    os._exit(FAILED)


def ensure_controller(
    settings: Settings, *, name: str, namespace: str, resource: str = ""
) -> "ActorHandle[ControllerActor]":
    """Return the controller actor of this name, created if there is none; idempotent.

    resource    custom Ray resource of which the actor takes 1; empty: it runs on any node
    """
    options = ray.remote(ControllerActor).options(
        name=name,
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=64,
        num_cpus=0,
        resources={resource: 1} if resource else None,
    )
    return cast("ActorHandle[ControllerActor]", options.remote(settings.model_dump_json()))
