"""What operators ask; decoding raises InvalidRequest."""

from collections.abc import Iterable
from math import isfinite

from eplb.v1 import admin_pb2

from eplb_service.controller.desk import ActRequest, PlanRequest
from eplb_service.domain.errors import InvalidRequest
from eplb_service.wire.scalars import natural

MAX_REQUEST_ID = 128
MAX_WHO = 256
MAX_REASON = 1000
"""Characters; both are kept with every line of history."""
MAX_HISTORY = 10_000
MAX_FREEZE_S = 366 * 24 * 3600.0


def encode_act(act: ActRequest) -> admin_pb2.Act:
    """Translate who asks for a change."""
    return admin_pb2.Act(
        deployment=act.deployment, request_id=act.request_id, who=act.who, reason=act.reason
    )


def decode_act(message: admin_pb2.Act) -> ActRequest:
    """Translate who asks for a change; without a request id nothing can act once."""
    if not 0 < len(message.request_id) <= MAX_REQUEST_ID:
        raise InvalidRequest(
            f"act.request_id has {len(message.request_id)} characters; expected 1 to "
            f"{MAX_REQUEST_ID}, so that the act happens once; nothing changed"
        )
    who = _short(message.who, "act.who", MAX_WHO)
    reason = _short(message.reason, "act.reason", MAX_REASON)
    return ActRequest(message.deployment, message.request_id, who, reason)


def encode_spec(request: PlanRequest) -> admin_pb2.PlanSpec:
    """Translate what is asked of a plan."""
    return admin_pb2.PlanSpec(
        deployment=request.deployment,
        policy=request.policy,
        layers=request.layers,
        reason=request.reason,
        who=request.who,
    )


def decode_spec(message: admin_pb2.PlanSpec) -> PlanRequest:
    """Translate what is asked of a plan."""
    layers = decode_layers(message.layers)
    who = _short(message.who, "spec.who", MAX_WHO)
    reason = _short(message.reason, "spec.reason", MAX_REASON)
    return PlanRequest(message.deployment, message.policy, layers, reason, who)


def decode_layers(layers: Iterable[int]) -> tuple[int, ...]:
    """Return MoE layer indexes, each once, in the order asked for."""
    return tuple(dict.fromkeys(natural(layer, "layers") for layer in layers))


def decode_limit(limit: int) -> int:
    """Return how many entries are asked for."""
    if not 1 <= limit <= MAX_HISTORY:
        raise InvalidRequest(f"limit is {limit}; expected 1 to {MAX_HISTORY}; nothing is returned")
    return limit


def decode_seconds(seconds: float) -> float:
    """Return how long a freeze is to last; 0 lifts it."""
    if not isfinite(seconds) or not 0 <= seconds <= MAX_FREEZE_S:
        raise InvalidRequest(
            f"seconds is {seconds}; expected 0 to lift a freeze, or up to {MAX_FREEZE_S:.0f} "
            "(a year); nothing changed"
        )
    return seconds


def decode_plan_id(plan_id: str) -> str:
    """Return the id of a plan, which must be named."""
    if not plan_id:
        raise InvalidRequest("plan_id is empty; expected the id that `plan` printed")
    return plan_id


def _short(text: str, name: str, most: int) -> str:
    """Return what a person wrote; raises InvalidRequest where it is no sentence any more."""
    if len(text) > most:
        raise InvalidRequest(
            f"{name} has {len(text)} characters; expected at most {most}; nothing changed"
        )
    return text
