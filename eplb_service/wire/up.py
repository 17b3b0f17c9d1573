"""Words of a rank to the controller."""

from typing import Literal

from eplb.v1 import agent_pb2

from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.report import LoadReport
from eplb_service.protocol.messages import (
    Accepted,
    Armed,
    CutOver,
    Dropped,
    Halted,
    Hello,
    Idle,
    Nack,
    SharesApplied,
    Staged,
    Up,
    Word,
)
from eplb_service.wire.enums import DROP_REASON, NACK_REASON
from eplb_service.wire.hello import decode_hello, encode_hello
from eplb_service.wire.nouns import (
    decode_halt,
    decode_share_name,
    decode_wave,
    encode_halt,
    encode_share_name,
    encode_wave,
)
from eplb_service.wire.report import decode_report, encode_report
from eplb_service.wire.scalars import natural, require

AboutWave = Literal["accepted", "nack", "staged", "armed", "cut_over", "dropped"]


def encode_up(word: Up) -> agent_pb2.UpMessage:
    """Translate any word of a rank."""
    match word:
        case Hello():
            return agent_pb2.UpMessage(hello=encode_hello(word))
        case LoadReport():
            return agent_pb2.UpMessage(load_report=encode_report(word))
        case _:
            return _encode_word(word)


def decode_up(message: agent_pb2.UpMessage) -> Up:
    """Translate any word of a rank.

    Raises InvalidReport for a load report, InvalidTable or InvalidRequest for the rest.
    """
    kind = message.WhichOneof("message")
    match kind:
        case "load_report":
            return decode_report(message.load_report)
        case "hello":
            return decode_hello(message.hello)
        case "halted":
            require(message.halted, "halt")
            step = natural(message.halted.step, "Halted.step")
            return Halted(decode_halt(message.halted.halt), step)
        case "idle":
            return Idle(message.idle.is_idle, natural(message.idle.step, "Idle.step"))
        case "shares_applied":
            require(message.shares_applied, "shares")
            step = natural(message.shares_applied.step, "SharesApplied.step")
            return SharesApplied(decode_share_name(message.shares_applied.shares), step)
        case None:
            raise InvalidRequest(
                "an UpMessage names no word that is known here; expected exactly one; "
                "the message is refused"
            )
        case _:
            return _decode_about_wave(kind, message)


def _encode_word(word: Word) -> agent_pb2.UpMessage:
    """Translate a word of the protocol."""
    up = agent_pb2.UpMessage
    match word:
        case Accepted(wave):
            return up(accepted=agent_pb2.Accepted(wave=encode_wave(wave)))
        case Nack(wave, reason, text):
            code = NACK_REASON.encode(reason)
            return up(nack=agent_pb2.Nack(wave=encode_wave(wave), reason=code, text=text))
        case Staged(wave):
            return up(staged=agent_pb2.Staged(wave=encode_wave(wave)))
        case Armed(wave):
            return up(armed=agent_pb2.Armed(wave=encode_wave(wave)))
        case CutOver(wave, step):
            return up(cut_over=agent_pb2.CutOver(wave=encode_wave(wave), step=step))
        case Dropped(wave, step, reason):
            code = DROP_REASON.encode(reason)
            return up(dropped=agent_pb2.Dropped(wave=encode_wave(wave), step=step, reason=code))
        case Halted(halt, step):
            return up(halted=agent_pb2.Halted(halt=encode_halt(halt), step=step))
        case Idle(is_idle, step):
            return up(idle=agent_pb2.Idle(is_idle=is_idle, step=step))
        case SharesApplied(shares, step):
            name = encode_share_name(shares)
            return up(shares_applied=agent_pb2.SharesApplied(shares=name, step=step))


def _decode_about_wave(kind: AboutWave, message: agent_pb2.UpMessage) -> Word:
    """Translate a word that names a wave."""
    match kind:
        case "accepted":
            require(message.accepted, "wave")
            return Accepted(decode_wave(message.accepted.wave))
        case "nack":
            return _decode_nack(message.nack)
        case "staged":
            require(message.staged, "wave")
            return Staged(decode_wave(message.staged.wave))
        case "armed":
            require(message.armed, "wave")
            return Armed(decode_wave(message.armed.wave))
        case "cut_over":
            require(message.cut_over, "wave")
            step = natural(message.cut_over.step, "CutOver.step")
            return CutOver(decode_wave(message.cut_over.wave), step)
        case "dropped":
            return _decode_dropped(message.dropped)


def _decode_nack(message: agent_pb2.Nack) -> Nack:
    """Translate a refusal."""
    require(message, "wave")
    return Nack(
        decode_wave(message.wave), NACK_REASON.decode(message.reason, "Nack.reason"), message.text
    )


def _decode_dropped(message: agent_pb2.Dropped) -> Dropped:
    """Translate a drop."""
    require(message, "wave")
    return Dropped(
        decode_wave(message.wave),
        natural(message.step, "Dropped.step"),
        DROP_REASON.decode(message.reason, "Dropped.reason"),
    )
