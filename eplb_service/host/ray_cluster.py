"""Starting, finding and ending the controller's actor on a Ray cluster."""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import logging
import os
import socket
from dataclasses import dataclass
from typing import cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from eplb_service.domain.errors import DeadlineExceeded, EplbError, InvalidSettings
from eplb_service.host.actor import ControllerActor, ensure_controller
from eplb_service.host.assembly import Addresses
from eplb_service.settings.settings import Settings

log = logging.getLogger(__name__)

LOCAL = "local"
CLIENT = "ray://"
"""Scheme of a Ray Client server: for those that run on no node of the cluster."""
KNOCK_S = 10.0
NICENESS = "RAY_worker_niceness"
"""Of Ray's worker processes; 15 as Ray has it, at which a controller starves on a busy machine."""
LEAVE_S = 30.0
"""Longest wait for a controller that was told to leave; see `server.finish_s`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the actor is found."""

    name: str
    namespace: str
    resource: str = ""
    """Custom Ray resource of the nodes that the actor may run on; empty: any node."""


def connect(address: str, namespace: str) -> None:
    """Join a cluster, or start one on this machine for `local`, whose actors are not niced.

    Raises DeadlineExceeded where no cluster answers.
    """
    if address == LOCAL:
        os.environ.setdefault(NICENESS, "0")
        ray.init(address=LOCAL, namespace=namespace, include_dashboard=False)
        return
    try:
        _knock(address)
        ray.init(address=address, namespace=namespace)
    except OSError as silent:
        raise DeadlineExceeded(
            f"no Ray cluster answers at {address} ({silent}); nothing was started or ended"
        ) from silent


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at [ray://]HOST:PORT; Ray itself waits for minutes."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if port.isdecimal() and "//" not in host:
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


def require_durable(settings: Settings) -> None:
    """Raise InvalidSettings for a store that forgets what an actor knew when it restarts."""
    if settings.store.url.startswith("memory:"):
        raise InvalidSettings(
            f"store.url {settings.store.url} forgets when the actor restarts; expected "
            "sqlite:/// on a Ray cluster; nothing was started"
        )


def require_reachable(settings: Settings, place: Place) -> None:
    """Raise InvalidSettings for a store on one node's disk where several may run the actor.

    Ray would restart it on another node, where the file is not.
    """
    nodes = cast("list[dict[str, object]]", ray.nodes())
    able = [node for node in nodes if node["Alive"] and _offers(node, place.resource)]
    if settings.store.url.startswith("sqlite:") and len(able) > 1:
        raise InvalidSettings(
            f"store.url {settings.store.url} is a file on one node, but {len(able)} nodes may run "
            "the controller; expected redis://, or a --resource that one node alone offers; "
            "nothing was started"
        )


def _offers(node: dict[str, object], resource: str | None) -> bool:
    return not resource or resource in cast("dict[str, float]", node["Resources"])


def start(settings: Settings, place: Place, *, wait_s: float) -> Addresses:
    """Create the actor, or find the one that is there, and wait until it leads; idempotent.

    Raises InvalidSettings for a store that not every node that may run it could reach;
    what its start failed with, e.g. BindFailed, with the actor ended; and
    DeadlineExceeded, with the actor kept, when it takes longer.
    """
    require_reachable(settings, place)
    actor = ensure_controller(
        settings, name=place.name, namespace=place.namespace, resource=place.resource
    )
    try:
        found = cast("tuple[str, str, int]", ray.get(actor.ready.remote(), timeout=wait_s))
    except GetTimeoutError as late:
        raise DeadlineExceeded(
            f"the controller did not lead within {wait_s:g} s; its actor {place.name} is kept: "
            f"look at its log{_wanting(place)}, or end it with `eplb-service down`"
        ) from late
    except RayTaskError as failed:
        ray.kill(actor, no_restart=True)
        if isinstance(failed.cause, EplbError):
            raise failed.cause from failed
        raise
    return Addresses(*found)


def _wanting(place: Place) -> str:
    if not place.resource:
        return ""
    return f" and whether a node of the cluster offers the resource {place.resource}"


def end(place: Place) -> bool:
    """End the actor, once it has finished or withdrawn what runs; False where there is none."""
    try:
        found = ray.get_actor(place.name, namespace=place.namespace)
    except ValueError:
        return False
    actor = cast("ActorHandle[ControllerActor]", found)
    _let_leave(actor)
    ray.kill(actor, no_restart=True)
    return True


def _let_leave(actor: "ActorHandle[ControllerActor]") -> None:
    """Wait until the controller has left; one that cannot is ended all the same."""
    if not hasattr(actor, "leave"):  # of an earlier release
        return
    try:
        ray.get(actor.leave.remote(), timeout=LEAVE_S)
    except (GetTimeoutError, RayActorError, RayTaskError) as unable:
        log.warning("controller did not leave", extra={"text": str(unable)})


def leave() -> None:
    """Leave the cluster; a local one ends."""
    ray.shutdown()
