"""Words of the controller to one rank."""

from eplb.v1 import agent_pb2

from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import (
    Abort,
    Arm,
    Down,
    NewShares,
    ReportAck,
    Resume,
    Welcome,
)
from eplb_service.wire.nouns import (
    decode_placement,
    decode_share_name,
    decode_shares,
    decode_wave,
    encode_placement,
    encode_share_name,
    encode_shares,
    encode_wave,
)
from eplb_service.wire.order import decode_order, encode_order
from eplb_service.wire.scalars import digest, natural, positive, require


def encode_down(word: Down) -> agent_pb2.DownMessage:
    """Translate any word of the controller."""
    down = agent_pb2.DownMessage
    match word:
        case Welcome():
            return down(welcome=_encode_welcome(word))
        case Order():
            return down(order=encode_order(word))
        case NewShares():
            return down(new_shares=_encode_new_shares(word))
        case Arm(generation, incarnation, wave):
            name = encode_wave(wave)
            arm = agent_pb2.Arm(generation=generation, incarnation=incarnation, wave=name)
            return down(arm=arm)
        case Abort(generation, incarnation, wave):
            name = encode_wave(wave)
            abort = agent_pb2.Abort(generation=generation, incarnation=incarnation, wave=name)
            return down(abort=abort)
        case Resume(generation, incarnation, halt_number):
            return down(
                resume=agent_pb2.Resume(
                    generation=generation, incarnation=incarnation, halt_number=halt_number
                )
            )
        case ReportAck(generation, incarnation, epoch):
            return down(
                report_ack=agent_pb2.ReportAck(
                    generation=generation, incarnation=incarnation, epoch=epoch
                )
            )


def decode_down(message: agent_pb2.DownMessage) -> Down:
    """Translate any word of the controller; raises InvalidOrder, InvalidTable, InvalidRequest."""
    match message.WhichOneof("message"):
        case "welcome":
            return _decode_welcome(message.welcome)
        case "order":
            return decode_order(message.order)
        case "new_shares":
            return _decode_new_shares(message.new_shares)
        case "arm":
            require(message.arm, "wave")
            return Arm(*_sender(message.arm), decode_wave(message.arm.wave))
        case "abort":
            require(message.abort, "wave")
            return Abort(*_sender(message.abort), decode_wave(message.abort.wave))
        case "resume":
            number = natural(message.resume.halt_number, "Resume.halt_number")
            return Resume(*_sender(message.resume), number)
        case "report_ack":
            epoch = Epoch(natural(message.report_ack.epoch, "ReportAck.epoch"))
            return ReportAck(*_sender(message.report_ack), epoch)
        case None:
            raise InvalidRequest(
                "a DownMessage names no word that is known here; expected exactly one; "
                "the message is refused"
            )


def _sender(
    message: agent_pb2.Welcome
    | agent_pb2.NewShares
    | agent_pb2.Arm
    | agent_pb2.Abort
    | agent_pb2.Resume
    | agent_pb2.ReportAck,
) -> tuple[Generation, Incarnation]:
    """Who speaks, and to which incarnation."""
    return (
        Generation(natural(message.generation, "generation")),
        Incarnation(natural(message.incarnation, "incarnation")),
    )


def _encode_welcome(word: Welcome) -> agent_pb2.Welcome:
    """Translate the answer to Hello."""
    return agent_pb2.Welcome(
        generation=word.generation,
        incarnation=word.incarnation,
        epoch=word.epoch,
        placement=encode_placement(word.placement),
        shares=encode_shares(word.shares),
        report_every_steps=word.report_every_steps,
        sent_every_reports=word.sent_every_reports,
    )


def _decode_welcome(message: agent_pb2.Welcome) -> Welcome:
    """Translate the answer to Hello."""
    require(message, "placement", "shares")
    return Welcome(
        *_sender(message),
        Epoch(natural(message.epoch, "Welcome.epoch")),
        decode_placement(message.placement),
        decode_shares(message.shares),
        positive(message.report_every_steps, "Welcome.report_every_steps"),
        positive(message.sent_every_reports, "Welcome.sent_every_reports"),
    )


def _encode_new_shares(word: NewShares) -> agent_pb2.NewShares:
    """Translate a revision of one rank's table."""
    return agent_pb2.NewShares(
        generation=word.generation,
        incarnation=word.incarnation,
        name=encode_share_name(word.name),
        table_digest=word.table_digest,
        shares=encode_shares(word.shares),
    )


def _decode_new_shares(message: agent_pb2.NewShares) -> NewShares:
    """Translate a revision of one rank's table."""
    require(message, "name", "shares")
    return NewShares(
        *_sender(message),
        decode_share_name(message.name),
        digest(message.table_digest, "NewShares.table_digest"),
        decode_shares(message.shares),
    )
