"""Orders: one rank's part of one wave."""

from eplb.v1 import agent_pb2

from eplb_service.domain.errors import InvalidOrder
from eplb_service.domain.ids import Epoch, Generation, Incarnation
from eplb_service.domain.wave import Order, WaveContent
from eplb_service.wire.matrix import decode_ints, encode_matrix
from eplb_service.wire.scalars import digest, natural, require


def encode_order(order: Order) -> agent_pb2.Order:
    """Translate an order."""
    return agent_pb2.Order(
        epoch=order.epoch,
        generation=order.generation,
        incarnation=order.incarnation,
        expires_at_step=order.expires_at_step,
        content=encode_content(order.content),
        dispatch=encode_matrix(order.dispatch),
        digest=order.digest,
    )


def decode_order(message: agent_pb2.Order) -> Order:
    """Translate an order; raises InvalidOrder, InvalidTable or InvalidRequest.

    The fingerprint is computed again: an order that another version wrote with
    parts unknown here, or that was garbled, is refused and not half understood.
    """
    require(message, "content", "dispatch")
    order = Order(
        epoch=Epoch(natural(message.epoch, "Order.epoch")),
        generation=Generation(natural(message.generation, "Order.generation")),
        incarnation=Incarnation(natural(message.incarnation, "Order.incarnation")),
        expires_at_step=natural(message.expires_at_step, "Order.expires_at_step"),
        content=decode_content(message.content),
        dispatch=decode_ints(message.dispatch, "Order.dispatch", axes=3),
    )
    if order.digest != message.digest:
        raise InvalidOrder(
            f"the order of epoch {order.epoch} came with fingerprint {message.digest:016x} but "
            f"its content has {order.digest:016x}; the order is refused"
        )
    return order


def encode_content(content: WaveContent) -> agent_pb2.WaveContent:
    """Translate what a wave changes."""
    return agent_pb2.WaveContent(
        base_epoch=content.base_epoch,
        base=content.base,
        target=content.target,
        layers=encode_matrix(content.layers),
        rows=encode_matrix(content.rows),
        transfers=encode_matrix(content.transfers),
        round_ends=content.round_ends,
        dispatch=content.dispatch,
    )


def decode_content(message: agent_pb2.WaveContent) -> WaveContent:
    """Translate what a wave changes; raises InvalidOrder, InvalidTable or InvalidRequest."""
    return WaveContent(
        base_epoch=Epoch(natural(message.base_epoch, "content.base_epoch")),
        base=digest(message.base, "content.base"),
        target=digest(message.target, "content.target"),
        layers=decode_ints(message.layers, "content.layers", axes=1),
        rows=decode_ints(message.rows, "content.rows", axes=2),
        transfers=decode_ints(message.transfers, "content.transfers", axes=2),
        round_ends=tuple(natural(end, "content.round_ends") for end in message.round_ends),
        dispatch=tuple(digest(value, "content.dispatch") for value in message.dispatch),
    )
