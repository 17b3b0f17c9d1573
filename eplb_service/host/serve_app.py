"""A thin Ray Serve application: the controller's actor exists, and HTTP says where it is.

deploy/ray/serve_config.yaml deploys it. Ranks and operators speak gRPC with the actor itself
and never pass through Serve. The only module that imports ray.serve.
"""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedClassDecorator=false

import asyncio
from http import HTTPStatus
from typing import cast

import ray
from pydantic import BaseModel
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import RayError
from starlette.requests import Request
from starlette.responses import JSONResponse

from eplb_service.host.actor import ControllerActor
from eplb_service.host.assembly import Addresses
from eplb_service.host.main import NAME, NAMESPACE
from eplb_service.host.ray_cluster import Place, require_durable, start
from eplb_service.settings.settings import Settings

START_S = 60.0
"""A controller that does not lead within this fails the deployment."""
ANSWER_S = 5.0
"""An actor that is silent for so long is not ready."""


class AppArgs(BaseModel, frozen=True, extra="forbid"):
    """What the Serve config says under `args`; the environment is not read."""

    settings: Settings = Settings()
    name: str = NAME
    namespace: str = NAMESPACE
    resource: str = ""


@serve.deployment(name="controller-status", num_replicas=1, ray_actor_options={"num_cpus": 0})
class ControllerStatus:
    """Answers every request with where the controller is, or with 503 and why it is not there.

    The actor is created when a replica starts and never by a request: one that another
    controller has fenced must stay ended, or the two would fence each other in turn.
    """

    def __init__(self, settings: str, place: Place) -> None:
        """Create the actor or find it; raises what its start failed with, e.g. BindFailed.

        settings    the settings tree as JSON
        """
        self._place = place
        start(Settings.model_validate_json(settings), place, wait_s=START_S)

    async def __call__(self, _request: Request) -> JSONResponse:
        """Answer with name, namespace, is_ready, and endpoint and metrics_url, or an error."""
        known = {"name": self._place.name, "namespace": self._place.namespace}
        try:
            found = await asyncio.wait_for(self._addresses(), ANSWER_S)
        except (RayError, TimeoutError, ValueError) as away:
            error = str(away) or f"the actor did not answer within {ANSWER_S:g} s"
            told = {**known, "is_ready": False, "error": error}
            return JSONResponse(told, status_code=HTTPStatus.SERVICE_UNAVAILABLE)
        told = {
            **known,
            "is_ready": True,
            "endpoint": found.endpoint,
            "metrics_url": found.metrics_url,
        }
        return JSONResponse(told)

    async def _addresses(self) -> Addresses:
        """Ask the actor of this name, whoever created it; raises ValueError where there is none."""
        actor = cast(
            "ActorHandle[ControllerActor]",
            await asyncio.to_thread(
                ray.get_actor, self._place.name, namespace=self._place.namespace
            ),
        )
        found = await asyncio.wrap_future(actor.ready.remote().future())
        return Addresses(*cast("tuple[str, str, int]", found))


def app(args: AppArgs) -> serve.Application:
    """Build the application; raises InvalidSettings for a store that forgets."""
    require_durable(args.settings)
    place = Place(args.name, args.namespace, args.resource)
    return ControllerStatus.bind(args.settings.model_dump_json(), place)
