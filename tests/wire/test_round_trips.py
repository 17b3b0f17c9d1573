"""Every word arrives as it was sent."""

import sys
from enum import StrEnum

import numpy as np
import pytest
from eplb.v1 import agent_pb2
from hypothesis import given

from eplb_service.domain.deployment import CountMeaning
from eplb_service.domain.report import LoadReport, Phase
from eplb_service.domain.shares import Ownership
from eplb_service.protocol import messages as m
from eplb_service.wire import enums
from eplb_service.wire.down import decode_down, encode_down
from eplb_service.wire.matrix import encode_matrix
from eplb_service.wire.scalars import EnumTable
from eplb_service.wire.up import decode_up, encode_up
from tests.wire import words
from tests.wire.plain import plain


def over_the_street_up(word: m.Up) -> m.Up:
    return decode_up(agent_pb2.UpMessage.FromString(encode_up(word).SerializeToString()))


def over_the_street_down(word: m.Down) -> m.Down:
    return decode_down(agent_pb2.DownMessage.FromString(encode_down(word).SerializeToString()))


@given(words.words)
def test_words_of_a_rank_arrive_as_sent(word: m.Word) -> None:
    assert plain(over_the_street_up(word)) == plain(word)


@given(words.hellos)
def test_hello_arrives_as_sent(hello: m.Hello) -> None:
    arrived = over_the_street_up(hello)
    assert plain(arrived) == plain(hello)
    assert isinstance(arrived, m.Hello)
    assert arrived.placement.digest() == hello.placement.digest()


@given(words.reports())
def test_load_reports_arrive_as_sent(report: LoadReport) -> None:
    assert plain(over_the_street_up(report)) == plain(report)


@given(words.downs)
def test_words_of_the_controller_arrive_as_sent(word: m.Down) -> None:
    assert plain(over_the_street_down(word)) == plain(word)


def test_every_word_has_its_place_in_the_stream() -> None:
    up = {field.name for field in agent_pb2.UpMessage.DESCRIPTOR.oneofs_by_name["message"].fields}
    down = {f.name for f in agent_pb2.DownMessage.DESCRIPTOR.oneofs_by_name["message"].fields}
    assert len(up) == 2 + len(m.Word.__args__)
    assert len(down) == 2 + len(m.ToMachine.__args__)


@pytest.mark.parametrize(
    ("table", "enum"),
    [
        (enums.COUNT_MEANING, CountMeaning),
        (enums.OWNERSHIP, Ownership),
        (enums.PHASE, Phase),
        (enums.RANK_PHASE, m.RankPhase),
        (enums.OUTCOME_KIND, m.OutcomeKind),
        (enums.NACK_REASON, m.NackReason),
        (enums.DROP_REASON, m.DropReason),
    ],
)
def test_every_word_of_an_enum_has_a_number_of_its_own(
    table: EnumTable[StrEnum, int], enum: type[StrEnum]
) -> None:
    assert table.words == set(enum)
    numbers = [table.encode(word) for word in enum]
    assert len(set(numbers)) == len(numbers)
    assert 0 not in numbers


def test_matrices_are_little_endian_wherever_they_were_made() -> None:
    here = np.array([[1, 2], [3, -4]], dtype=np.int32)
    other = "<" if sys.byteorder == "big" else ">"
    foreign = here.astype(here.dtype.newbyteorder(other))
    assert encode_matrix(here).data == here.astype("<i4").tobytes()
    assert encode_matrix(foreign) == encode_matrix(here)


def test_matrices_are_packed_in_row_order() -> None:
    table = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert encode_matrix(table.T) == encode_matrix(np.ascontiguousarray(table.T))
    assert list(encode_matrix(table.T).shape) == [3, 2]


def test_a_report_without_sent_counts_carries_no_columns(kimi_report: LoadReport) -> None:
    message = encode_up(kimi_report).load_report
    assert not message.HasField("sent")


def test_a_report_of_a_large_model_stays_in_the_tens_of_kilobytes(kimi_report: LoadReport) -> None:
    assert len(encode_up(kimi_report).SerializeToString()) < 20_000


def test_decoded_counts_are_views_of_the_message(kimi_report: LoadReport) -> None:
    arrived = over_the_street_up(kimi_report)
    assert isinstance(arrived, LoadReport)
    assert not arrived.received.flags.owndata
    assert not arrived.received.flags.writeable
