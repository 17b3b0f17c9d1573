"""What cannot be believed is refused by name, before anything is allocated for it."""

import tracemalloc

import numpy as np
import pytest
from eplb.v1 import agent_pb2, types_pb2
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.domain.errors import (
    InvalidOrder,
    InvalidReport,
    InvalidRequest,
    InvalidTable,
)
from eplb_service.domain.report import LoadReport
from eplb_service.domain.wave import Order
from eplb_service.wire.down import decode_down, encode_down
from eplb_service.wire.matrix import decode_counts, decode_floats, decode_ints, encode_matrix
from eplb_service.wire.nouns import decode_placement, decode_shares
from eplb_service.wire.up import decode_up, encode_up
from tests.wire import words

Up = agent_pb2.UpMessage
Down = agent_pb2.DownMessage
INT32 = types_pb2.DTYPE_INT32


def matrix(
    data: bytes, shape: list[int], dtype: types_pb2.Dtype.ValueType = INT32
) -> types_pb2.Matrix:
    return types_pb2.Matrix(data=data, dtype=dtype, shape=shape)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (matrix(bytes(20), [2, 3]), r"20 bytes; expected 24 for shape \[2, 3\] of int32"),
        (matrix(bytes(28), [2, 3]), "28 bytes; expected 24"),
        (matrix(b"", [2, 3]), "0 bytes; expected 24"),
        (matrix(bytes(24), [3, 2], types_pb2.DTYPE_INT64), "dtype number 2; expected 1"),
        (matrix(bytes(24), [3, 2], types_pb2.DTYPE_UNSPECIFIED), "dtype number 0; expected 1"),
        (matrix(bytes(24), [6]), "expected 2 axes"),
        (matrix(bytes(24), [2, 3, 1]), "expected 2 axes"),
        (matrix(b"", []), "expected 2 axes"),
        (matrix(bytes(24), [-2, -3]), r"shape \[-2, -3\]; expected 2 axes, none negative"),
        (matrix(b"", [2**31 - 1, 2**31 - 1]), "expected at most 16777216 elements"),
        (matrix(b"", [0, 2**31 - 1]), "expected at most 16777216 elements"),
        (matrix(b"", [1] * 1_000), r"and 992 axes more"),
    ],
)
def test_a_table_that_is_not_what_it_says_is_refused(message: types_pb2.Matrix, said: str) -> None:
    with pytest.raises(InvalidTable, match=f"the_table has .*{said}"):
        decode_ints(message, "the_table", axes=2)


def test_an_unknown_dtype_of_a_newer_version_is_refused() -> None:
    message = types_pb2.Matrix.FromString(b"\x10\x63")
    assert message.dtype == 99
    for decode in (decode_ints, decode_counts, decode_floats):
        with pytest.raises(InvalidTable, match="dtype number 99"):
            decode(message, "table", axes=1)


def test_a_huge_shape_costs_nothing() -> None:
    message = matrix(bytes(64), [4096, 4096])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidTable, match="64 bytes; expected 67108864"):
            decode_ints(message, "table", axes=2)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def spoil(message: Message, path: str, value: object) -> None:
    """Set one field by its dotted path; None clears it, () adds an empty part."""
    *parts, last = path.split(".")
    for part in parts:
        message = getattr(message, part)
    if value is None:
        message.ClearField(last)
    elif value == ():
        getattr(message, last).SetInParent()
    elif isinstance(value, Message):
        getattr(message, last).CopyFrom(value)
    else:
        setattr(message, last, value)


def columns(layers: int, experts: int, tokens: int, *, value: int = 0) -> agent_pb2.SentCounts:
    return agent_pb2.SentCounts(
        layers=encode_matrix(np.zeros(layers, np.int32)),
        experts=encode_matrix(np.full(experts, value, np.int32)),
        tokens=encode_matrix(np.zeros(tokens, np.int64)),
    )


RECEIVED = (92, 16)


@pytest.mark.parametrize(
    ("path", "value", "reason", "said"),
    [
        ("received.data", bytes(11_768), "shape", "received has 11768 bytes; expected 11776"),
        ("received", encode_matrix(np.ones(RECEIVED, np.int32)), "shape", "has dtype number 1"),
        ("received", encode_matrix(np.ones(RECEIVED)), "shape", "received has dtype number 3"),
        ("received", encode_matrix(np.full(RECEIVED, -1)), "negative", "received holds -1"),
        ("sent_total", encode_matrix(np.full(92, -5)), "negative", "sent_total holds -5"),
        ("sent_total", encode_matrix(np.full(91, 5)), "shape", "92 layers and sent_total 91"),
        ("sent", columns(2, 2, 3), "shape", "columns of sent have 2, 2 and 3 entries"),
        ("sent", columns(1, 2, 2), "shape", "columns of sent have 1, 2 and 2 entries"),
        ("sent", columns(1, 1, 1, value=-1), "negative", "sent.experts holds -1"),
        ("sent", (), "shape", "sent.layers has dtype number 0"),
        ("received", None, "malformed", "without its received"),
        ("steps", None, "malformed", "without its steps"),
        ("phase", 0, "malformed", "phase is 0; expected one of 1 .prefill., 2 .decode."),
        ("phase", 77, "malformed", "phase is 77"),
        ("epoch", -1, "negative", "epoch is -1"),
        ("revision", -1, "negative", "revision is -1"),
        ("step", -1, "negative", "step is -1"),
        ("reset", -1, "negative", "reset is -1"),
        ("placement", 2**63, "malformed", "placement is 0x8000000000000000"),
        ("steps.step_seconds", float("nan"), "nan", "steps.step_seconds is nan"),
        ("steps.expert_seconds", float("inf"), "nan", "steps.expert_seconds is inf"),
        ("steps.expert_seconds", -0.5, "negative", "steps.expert_seconds is -0.5"),
        ("steps.padding_rows", -3, "negative", "steps.padding_rows is -3"),
        ("steps.overflow_tokens", -3, "negative", "steps.overflow_tokens is -3"),
        ("steps.tokens", -3, "negative", "steps.tokens is -3"),
        ("steps.real", -3, "negative", "steps.real is -3"),
        ("steps.dummy", -3, "negative", "steps.dummy is -3"),
        ("steps.warmup", -3, "negative", "steps.warmup is -3"),
        ("steps.profile", -3, "negative", "steps.profile is -3"),
    ],
)
def test_a_spoiled_report_is_refused_with_one_word_of_reason(
    kimi_report: LoadReport, path: str, value: object, reason: str, said: str
) -> None:
    message = encode_up(kimi_report)
    spoil(message.load_report, path, value)
    with pytest.raises(InvalidReport, match=said) as refused:
        decode_up(message)
    assert refused.value.reason == reason


def test_a_message_without_a_word_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="names no word that is known here"):
        decode_up(Up())
    with pytest.raises(InvalidRequest, match="names no word that is known here"):
        decode_down(Down())


def test_a_word_of_a_newer_version_is_refused() -> None:
    unknown = b"\xa2\x06\x00"  # field 100, empty
    with pytest.raises(InvalidRequest, match="names no word that is known here"):
        decode_up(Up.FromString(unknown))
    with pytest.raises(InvalidRequest, match="names no word that is known here"):
        decode_down(Down.FromString(unknown))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Up(accepted=agent_pb2.Accepted()), "Accepted came without its wave"),
        (Up(nack=agent_pb2.Nack()), "Nack came without its wave"),
        (Up(staged=agent_pb2.Staged()), "Staged came without its wave"),
        (Up(armed=agent_pb2.Armed()), "Armed came without its wave"),
        (Up(cut_over=agent_pb2.CutOver()), "CutOver came without its wave"),
        (Up(dropped=agent_pb2.Dropped()), "Dropped came without its wave"),
        (Up(halted=agent_pb2.Halted()), "Halted came without its halt"),
        (Up(shares_applied=agent_pb2.SharesApplied()), "SharesApplied came without its shares"),
        (Up(hello=agent_pb2.Hello()), "Hello came without its identity"),
        (Up(idle=agent_pb2.Idle(step=-4)), "Idle.step is -4; expected at least 0"),
    ],
)
def test_a_word_of_a_rank_with_a_part_missing_is_refused(message: Up, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decode_up(message)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Down(welcome=agent_pb2.Welcome()), "Welcome came without its placement"),
        (Down(order=agent_pb2.Order()), "Order came without its content"),
        (Down(new_shares=agent_pb2.NewShares()), "NewShares came without its name"),
        (Down(arm=agent_pb2.Arm()), "Arm came without its wave"),
        (Down(abort=agent_pb2.Abort()), "Abort came without its wave"),
        (Down(resume=agent_pb2.Resume(generation=-1)), "generation is -1; expected at least 0"),
        (Down(report_ack=agent_pb2.ReportAck(epoch=-2)), "ReportAck.epoch is -2"),
    ],
)
def test_a_word_of_the_controller_with_a_part_missing_is_refused(message: Down, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decode_down(message)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("identity.model", "", "identity.model is empty"),
        ("identity.group", "g" * 257, "identity.group has 257 characters"),
        ("identity.stage", -1, "identity.stage is -1"),
        ("shape", types_pb2.ModelShape(layers=[1] * 1_025), "number of shape.layers is 1025"),
        (
            "shape",
            types_pb2.ModelShape(num_experts=8, num_groups=3),
            "shape.num_groups is 3; expected a divisor of 8 experts",
        ),
        ("shape.num_experts", 2**31 - 1, "shape.num_experts is 2147483647; expected 0 to 16384"),
        ("profile.num_ranks", 0, "profile.num_ranks is 0"),
        ("profile.num_ranks", 10_000, "profile.num_ranks is 10000"),
        ("profile.rank", 2, "profile.rank is 2; expected 0 to 1"),
        ("profile.rank", -1, "profile.rank is -1"),
        ("profile.count_replicas", 0, "profile.count_replicas is 0"),
        ("profile.count_meaning", 0, "profile.count_meaning is 0"),
        ("profile.ownership", 9, "profile.ownership is 9"),
        ("status.phase", 0, "status.phase is 0"),
        ("status.served", None, "RankStatus came without its served"),
        ("status.halt", None, "RankStatus came without its halt"),
        ("status.outcome", (), "Outcome came without its wave"),
        ("incarnation", -1, "Hello.incarnation is -1"),
        ("placement.num_experts", 20_000, "placement.num_experts is 20000"),
    ],
)
def test_a_spoiled_hello_is_refused(path: str, value: object, said: str) -> None:
    message = encode_up(words.a_hello())
    spoil(message.hello, path, value)
    with pytest.raises(InvalidRequest, match=said):
        decode_up(message)


@pytest.mark.parametrize("slots", [[], [5], [-1, 5], [2, 3], [4, 0, 1]])
def test_a_placement_whose_ranks_do_not_add_up_is_refused(slots: list[int]) -> None:
    phy2log = encode_matrix(np.zeros((2, 4), np.int32))
    message = types_pb2.Placement(phy2log=phy2log, num_experts=4, slots_per_rank=slots)
    with pytest.raises(InvalidTable, match="slots per rank"):
        decode_placement(message)


def test_several_tables_for_replicated_tokens_are_refused() -> None:
    tables = encode_matrix(np.zeros((2, 1, 1, 1), np.int32))
    message = types_pb2.Shares(tables=tables, ownership=types_pb2.OWNERSHIP_REPLICATED)
    with pytest.raises(InvalidTable, match="2 dispatch tables for replicated tokens"):
        decode_shares(message)


@given(words.orders(), st.sampled_from(["expires_at_step", "incarnation"]))
def test_an_order_with_another_fingerprint_is_refused(order: Order, field: str) -> None:
    message = encode_down(order)
    value = getattr(message.order, field)
    setattr(message.order, field, value + (1 if value < 2**62 else -1))
    with pytest.raises(InvalidOrder, match="came with fingerprint"):
        decode_down(message)


@given(words.orders())
def test_a_new_controller_sends_an_order_again_unchanged(order: Order) -> None:
    message = encode_down(order)
    message.order.generation = 1
    arrived = decode_down(message)
    assert isinstance(arrived, Order)
    assert arrived.digest == order.digest


def test_rounds_that_do_not_cover_the_transfers_are_refused() -> None:
    message = encode_down(words.an_order())
    message.order.content.ClearField("round_ends")
    with pytest.raises(InvalidOrder, match="round ends"):
        decode_down(message)


def test_a_cadence_of_no_steps_is_refused() -> None:
    message = encode_down(words.a_welcome())
    message.welcome.report_every_steps = 0
    with pytest.raises(InvalidRequest, match="report_every_steps is 0; expected at least 1"):
        decode_down(message)
