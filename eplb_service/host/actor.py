"""The controller as a named, detached Ray actor.

After a crash Ray runs `__init__` again and nothing else, so everything starts there.
The name is no lock: a node that Ray has lost may keep its actor alive, and then the
store's fence decides who leads.
"""

import asyncio
import logging
import os
from typing import cast

import ray
from ray.actor import ActorHandle

from eplb_service.host.assembly import Addresses, Service
from eplb_service.host.logs import log_events
from eplb_service.host.planner_ray import RayPlanRunner
from eplb_service.settings.settings import Settings

log = logging.getLogger(__name__)

FAILED = 70
"""Exit code of a controller that could not go on; Ray then starts it anew."""


class ControllerActor:
    """Hosts one controller; the actor's event loop is the controller's."""

    def __init__(self, settings: str) -> None:
        """Start serving; `settings` is the settings tree as JSON."""
        log_events()
        service = Service(Settings.model_validate_json(settings), RayPlanRunner())
        self._ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        self._life = asyncio.get_running_loop().create_task(service.run(self._ready.set_result))
        self._life.add_done_callback(self._end)

    async def ready(self) -> tuple[str, str]:
        """Wait until it leads; returns gRPC's host:port and the metrics' URL.

        Raises whatever the start failed with, e.g. BindFailed.
        """
        done, _ = await asyncio.wait({self._ready, self._life}, return_when=asyncio.FIRST_COMPLETED)
        if self._life in done:
            await self._life
        found = self._ready.result()
        return found.endpoint, found.metrics_url

    def pid(self) -> int:
        """Process id, for those who must end it by its own."""
        return os.getpid()

    def _end(self, life: asyncio.Task[None]) -> None:
        """A controller whose life is over must not look alive: end the process."""
        if life.cancelled():
            return
        log.error("controller ended", exc_info=life.exception())
        # `ready` gets one turn of the loop to raise the reason to whoever waits for it.
        asyncio.get_running_loop().call_later(1.0, os._exit, FAILED)


def ensure_controller(
    settings: Settings, *, name: str, namespace: str
) -> "ActorHandle[ControllerActor]":
    """Return the controller actor of this name, created if there is none; idempotent."""
    options = ray.remote(ControllerActor).options(
        name=name,
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=64,
        num_cpus=0,
    )
    return cast("ActorHandle[ControllerActor]", options.remote(settings.model_dump_json()))
