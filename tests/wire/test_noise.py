"""Bytes that no rank would send are refused by name, whatever they are."""

from contextlib import suppress

from eplb.v1 import agent_pb2, types_pb2
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.domain.errors import (
    EplbError,
    InvalidRequest,
    InvalidTable,
)
from eplb_service.protocol import messages as m
from eplb_service.wire.down import decode_down
from eplb_service.wire.up import decode_up, encode_up
from tests.wire import words

Up = agent_pb2.UpMessage
Down = agent_pb2.DownMessage
INT32 = types_pb2.DTYPE_INT32


@given(st.binary(max_size=200))
def test_noise_is_refused_by_name_or_means_something(noise: bytes) -> None:
    """No byte string that protobuf takes makes a decoder fail in any way but a named one."""
    with suppress(DecodeError, EplbError):
        decode_up(Up.FromString(noise))
    with suppress(DecodeError, EplbError):
        decode_down(Down.FromString(noise))


@given(words.hellos, st.data())
def test_a_hello_with_any_matrix_garbled_is_refused_by_name(
    hello: m.Hello, data: st.DataObject
) -> None:
    message = encode_up(hello)
    table = message.hello.placement.phy2log
    table.data = data.draw(st.binary(max_size=40))
    table.shape[:] = data.draw(st.lists(st.integers(-3, 2**31 - 1), max_size=5))
    try:
        decode_up(message)
    except (InvalidTable, InvalidRequest):
        return
    assert len(table.data) == 4 * table.shape[0] * table.shape[1]
