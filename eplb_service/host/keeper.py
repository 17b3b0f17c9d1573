"""Keeps the controller's actor in existence on a Ray cluster, for whoever supervises processes.

Ray restarts a crashed actor by itself, on another node too. What it cannot do is make one that
is gone with all that Ray remembered: a head lost without fault tolerance. That is the keeper's
part, and to replace the actor when its settings change.
"""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import logging
import time
from collections.abc import Callable
from typing import NoReturn, cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from eplb_service.domain.errors import DeadlineExceeded, EplbError, NotLeader
from eplb_service.host.actor import ControllerActor
from eplb_service.host.assembly import Addresses
from eplb_service.host.ray_cluster import Place, end, start
from eplb_service.settings.settings import Settings

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""From a start that failed to the next."""
GONE_S = 30.0
"""Within this an actor that was told to end has given up its name."""
LOOK_S = 0.2


class Keeper:
    """Sees to it that the actor exists with the settings that are wanted."""

    def __init__(self, settings: Settings, place: Place, *, wait_s: float) -> None:
        self._settings = settings
        self._place = place
        self._wait_s = wait_s

    def keep(self, announce: Callable[[Addresses], None]) -> NoReturn:
        """Start the actor whenever there is none; returns never.

        Raises NotLeader once another controller has fenced it: to start it again would fence
        that one. Raises DeadlineExceeded where the cluster itself is gone.
        """
        self._replace_other_settings()
        while True:
            try:
                announce(start(self._settings, self._place, wait_s=self._wait_s))
                self._watch()
            except NotLeader:
                raise
            except EplbError as failed:
                log.warning(
                    "controller not started", extra={"code": failed.code, "text": str(failed)}
                )
            except ConnectionError as gone:
                raise DeadlineExceeded(
                    f"the Ray cluster does not answer any more ({gone}); the keeper ends, and "
                    "its supervisor starts it again"
                ) from gone
            time.sleep(AGAIN_S)

    def _watch(self) -> None:
        """Return when the actor is gone for good; raises what its controller ended with."""
        actor = self._actor()
        if actor is None:
            return
        try:
            ray.get(actor.ended.remote())
        except RayActorError as gone:
            log.warning("controller's actor is gone", extra={"text": str(gone)})
        except RayTaskError as ended:
            if isinstance(ended.cause, EplbError):
                raise ended.cause from ended
            log.warning("controller ended", extra={"text": str(ended)})

    def _replace_other_settings(self) -> None:
        """End an actor that was started with other settings, so that a new one can be made."""
        actor = self._actor()
        if actor is None:
            return
        try:
            kept = ray.get(actor.settings.remote(), timeout=self._wait_s)
        except (RayActorError, TimeoutError) as silent:
            log.warning(
                "controller's actor does not tell its settings", extra={"text": str(silent)}
            )
            kept = ""
        if kept == self._settings.model_dump_json():
            return
        log.info("controller replaced, for its settings changed", extra={"actor": self._place.name})
        end(self._place)
        give_up_at = time.monotonic() + GONE_S
        while self._actor() is not None:
            if time.monotonic() > give_up_at:
                raise DeadlineExceeded(
                    f"actor {self._place.name} was told to end and still has its name after "
                    f"{GONE_S:g} s; nothing was started"
                )
            time.sleep(LOOK_S)

    def _actor(self) -> "ActorHandle[ControllerActor] | None":
        try:
            found = ray.get_actor(self._place.name, namespace=self._place.namespace)
        except ValueError:
            return None
        return cast("ActorHandle[ControllerActor]", found)
