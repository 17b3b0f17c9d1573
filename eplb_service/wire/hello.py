"""Hello: who a rank is and where it stands."""

from eplb.v1 import agent_pb2

from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.protocol.messages import Hello, Outcome, RankStatus
from eplb_service.wire.enums import OUTCOME_KIND, RANK_PHASE
from eplb_service.wire.nouns import (
    decode_halt,
    decode_identity,
    decode_placement,
    decode_profile,
    decode_shape,
    decode_share_name,
    decode_wave,
    encode_halt,
    encode_identity,
    encode_placement,
    encode_profile,
    encode_shape,
    encode_share_name,
    encode_wave,
)
from eplb_service.wire.scalars import natural, require


def encode_hello(hello: Hello) -> agent_pb2.Hello:
    """Translate a rank's first word."""
    return agent_pb2.Hello(
        identity=encode_identity(hello.identity),
        shape=encode_shape(hello.shape),
        profile=encode_profile(hello.profile),
        incarnation=hello.incarnation,
        placement=encode_placement(hello.placement),
        status=_encode_status(hello.status),
        generation_seen=hello.generation_seen,
    )


def decode_hello(message: agent_pb2.Hello) -> Hello:
    """Translate a rank's first word; raises InvalidTable or InvalidRequest."""
    require(message, "identity", "shape", "profile", "placement", "status")
    return Hello(
        identity=decode_identity(message.identity),
        shape=decode_shape(message.shape),
        profile=decode_profile(message.profile),
        incarnation=Incarnation(natural(message.incarnation, "Hello.incarnation")),
        placement=decode_placement(message.placement),
        status=_decode_status(message.status),
        generation_seen=Generation(natural(message.generation_seen, "Hello.generation_seen")),
    )


def _encode_status(status: RankStatus) -> agent_pb2.RankStatus:
    """Translate where a rank stands."""
    return agent_pb2.RankStatus(
        served=encode_share_name(status.served),
        high_mark=status.high_mark,
        phase=RANK_PHASE.encode(status.phase),
        held=None if status.held is None else encode_wave(status.held),
        outcome=None if status.outcome is None else _encode_outcome(status.outcome),
        halt=encode_halt(status.halt),
        step=status.step,
        is_idle=status.is_idle,
    )


def _decode_status(message: agent_pb2.RankStatus) -> RankStatus:
    """Translate where a rank stands."""
    require(message, "served", "halt")
    return RankStatus(
        served=decode_share_name(message.served),
        high_mark=Epoch(natural(message.high_mark, "status.high_mark")),
        phase=RANK_PHASE.decode(message.phase, "status.phase"),
        held=decode_wave(message.held) if message.HasField("held") else None,
        outcome=_decode_outcome(message.outcome) if message.HasField("outcome") else None,
        halt=decode_halt(message.halt),
        step=natural(message.step, "status.step"),
        is_idle=message.is_idle,
    )


def _encode_outcome(outcome: Outcome) -> agent_pb2.Outcome:
    """Translate the end of a wave."""
    return agent_pb2.Outcome(
        wave=encode_wave(outcome.wave), kind=OUTCOME_KIND.encode(outcome.kind), step=outcome.step
    )


def _decode_outcome(message: agent_pb2.Outcome) -> Outcome:
    """Translate the end of a wave."""
    require(message, "wave")
    return Outcome(
        decode_wave(message.wave),
        OUTCOME_KIND.decode(message.kind, "outcome.kind"),
        natural(message.step, "outcome.step"),
    )
