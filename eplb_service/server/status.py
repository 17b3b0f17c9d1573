"""Failures on the street: one gRPC status for every named failure.

A client gets the status, the text as details and the stable code in the trailing metadata
`eplb-code`. A failure that has no name is INTERNAL: it is logged here, and nothing of it leaves.
"""

import logging
from typing import NoReturn, Protocol

import grpc

from eplb_service.domain import errors

log = logging.getLogger(__name__)

CODE_KEY = "eplb-code"
ENDPOINT_KEY = "eplb-endpoint"
"""Trailing metadata: where to ask instead, as ranks and operators write endpoints."""
STREAM_CLOSED = "stream_closed"
"""Code of a stream that the controller ended though nothing is wrong with its words."""
MAX_DETAILS = 2_000
"""Characters; gRPC drops a status whose metadata grows beyond 8 KiB when encoded."""

Status = grpc.StatusCode

STATUS: dict[type[errors.EplbError], grpc.StatusCode] = {
    errors.InvalidPlacement: Status.INVALID_ARGUMENT,
    errors.InvalidTable: Status.INVALID_ARGUMENT,
    errors.InvalidReport: Status.INVALID_ARGUMENT,
    errors.InvalidOrder: Status.INVALID_ARGUMENT,
    errors.InvalidSettings: Status.INVALID_ARGUMENT,
    errors.InvalidMapFile: Status.INVALID_ARGUMENT,
    errors.InvalidRequest: Status.INVALID_ARGUMENT,
    errors.MisfitPlacement: Status.INVALID_ARGUMENT,
    errors.UnknownDeployment: Status.NOT_FOUND,
    errors.UnknownRank: Status.NOT_FOUND,
    errors.UnknownPlan: Status.NOT_FOUND,
    errors.UnknownEpoch: Status.NOT_FOUND,
    errors.UnknownPolicy: Status.NOT_FOUND,
    errors.RegistrationRefused: Status.FAILED_PRECONDITION,
    errors.AttachRefused: Status.FAILED_PRECONDITION,
    errors.CannotServeOn: Status.FAILED_PRECONDITION,
    errors.PlanRejected: Status.FAILED_PRECONDITION,
    errors.InsufficientSamples: Status.FAILED_PRECONDITION,
    errors.DeploymentFrozen: Status.FAILED_PRECONDITION,
    errors.DeploymentHalted: Status.FAILED_PRECONDITION,
    errors.DeploymentBusy: Status.FAILED_PRECONDITION,
    errors.NotReady: Status.FAILED_PRECONDITION,
    errors.StaleMessage: Status.FAILED_PRECONDITION,
    errors.PlanOvertaken: Status.ABORTED,
    errors.ConflictingMessage: Status.ABORTED,
    errors.StoreConflict: Status.ABORTED,
    errors.StoreUnavailable: Status.UNAVAILABLE,
    errors.NotLeader: Status.UNAVAILABLE,
    errors.Elsewhere: Status.FAILED_PRECONDITION,
    errors.BindFailed: Status.UNAVAILABLE,
    errors.PlannerFailed: Status.INTERNAL,
    errors.PlannerTimeout: Status.DEADLINE_EXCEEDED,
    errors.DeadlineExceeded: Status.DEADLINE_EXCEEDED,
    errors.Unauthenticated: Status.UNAUTHENTICATED,
    errors.AccessDenied: Status.PERMISSION_DENIED,
    errors.TooManyRequests: Status.RESOURCE_EXHAUSTED,
}


Told = tuple[tuple[str, str], ...]


class Call(Protocol):
    """The part of grpc.aio.ServicerContext that ends a call."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Told) -> NoReturn:
        """End the call; raises."""
        ...

    def peer(self) -> str:
        """Return the other end's address."""
        ...


class StreamClosed(Exception):
    """The controller ended a stream; the rank is to come again."""


async def end_with(context: Call, error: Exception) -> NoReturn:
    """End a call with a failure; never returns, as abort raises."""
    match error:
        case errors.Elsewhere(endpoint=endpoint) if endpoint:
            told = (ENDPOINT_KEY, endpoint)
            await _abort(context, STATUS[type(error)], str(error), error.code, told)
        case errors.EplbError():
            await _abort(context, STATUS[type(error)], str(error), error.code)
        case StreamClosed():
            await _abort(context, Status.UNAVAILABLE, str(error), STREAM_CLOSED)
        case _:
            log.error("call failed", exc_info=error, extra={"peer": context.peer()})
            text = (
                "the controller failed on this call; its log says why; nothing is known to be done"
            )
            await _abort(context, Status.INTERNAL, text, errors.EplbError.code)


async def _abort(
    context: Call, status: grpc.StatusCode, text: str, code: str, *told: tuple[str, str]
) -> NoReturn:
    """End a call with a status, cut to what its metadata can hold."""
    plain = text.encode("ascii", "backslashreplace").decode()
    cut = plain if len(plain) <= MAX_DETAILS else plain[: MAX_DETAILS - 4] + " ..."
    await context.abort(status, cut, ((CODE_KEY, code), *told))
