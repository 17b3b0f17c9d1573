"""One release apart: what the committed baseline of proto can say, we read, and the other way."""

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from eplb.v1 import admin_pb2, agent_pb2, types_pb2
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from hypothesis import given

from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.report import LoadReport
from eplb_service.protocol import messages as m
from eplb_service.wire.down import decode_down, encode_down
from eplb_service.wire.up import decode_up, encode_up
from tests.wire import words
from tests.wire.older import OLDER, through
from tests.wire.plain import plain

NEWER: dict[str, type[Message]] = {
    descriptor.full_name: message_factory.GetMessageClass(descriptor)
    for file in (agent_pb2, admin_pb2, types_pb2)
    for descriptor in file.DESCRIPTOR.message_types_by_name.values()
}
BOTH = sorted(OLDER.keys() & NEWER.keys())


def fill(message: Message, depth: int = 0) -> Message:
    """Set every field that a message has, but one of each oneof, to something not its default."""
    for field in _one_of_each(cast("Descriptor", message.DESCRIPTOR)):
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            continue
        many = field.is_repeated
        if entry is not None:
            part = getattr(message, field.name)
            part = part.add() if many else part
            part.SetInParent()
            if depth < 6:
                fill(part, depth + 1)
        elif many:
            getattr(message, field.name).append(_sample(field))
        else:
            setattr(message, field.name, _sample(field))
    return message


def _one_of_each(descriptor: Descriptor) -> Iterator[FieldDescriptor]:
    for field in descriptor.fields:
        group = field.containing_oneof
        if group is None or group.fields[0].name == field.name:
            yield field


def _sample(field: FieldDescriptor) -> object:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_STRING:
            return b"x" if field.type == FieldDescriptor.TYPE_BYTES else "x"
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return 1.5
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            return field.enum_type.values[-1].number
        case _:
            return field.number


def content(message: Message) -> dict[str, object]:
    return MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=True)


def test_the_baseline_holds_what_the_streams_carry() -> None:
    assert {"eplb.v1.UpMessage", "eplb.v1.DownMessage", "eplb.v1.StatusRequest"} <= set(BOTH)
    assert set(OLDER) == set(BOTH), "no message of the older release is gone"


@pytest.mark.parametrize("name", BOTH)
def test_what_the_older_release_says_is_read_whole(name: str) -> None:
    said = fill(OLDER[name]())
    read = NEWER[name].FromString(said.SerializeToString())
    assert content(read) == content(said)


@pytest.mark.parametrize("name", BOTH)
def test_what_we_say_is_read_by_the_older_release_as_far_as_it_knows(name: str) -> None:
    said = fill(NEWER[name]())
    read = OLDER[name].FromString(said.SerializeToString())
    read.DiscardUnknownFields()
    assert content(read) == known(content(said), cast("Descriptor", OLDER[name].DESCRIPTOR))


def known(told: dict[str, object], older: Descriptor) -> dict[str, object]:
    """Leave out what the older release has no field for, at every depth."""
    kept: dict[str, object] = {}
    for name, value in told.items():
        field = older.fields_by_name.get(name)
        if field is None:
            continue
        inner = field.message_type
        if inner is None:
            kept[name] = value
        elif isinstance(value, list):
            kept[name] = [known(one, inner) for one in cast("list[dict[str, object]]", value)]
        else:
            kept[name] = known(cast("dict[str, object]", value), inner)
    return kept


@given(words.words | words.reports())
def test_words_of_an_older_rank_mean_the_same(word: m.Word | LoadReport) -> None:
    older = agent_pb2.UpMessage.FromString(through("UpMessage", encode_up(word)))
    assert plain(decode_up(older)) == plain(word)


@given(words.hellos)
def test_an_older_rank_is_one_that_sets_no_shares(hello: m.Hello) -> None:
    older = agent_pb2.UpMessage.FromString(through("UpMessage", encode_up(hello)))
    as_known = replace(hello, profile=replace(hello.profile, sets_shares=False))
    assert plain(decode_up(older)) == plain(as_known)


@given(words.downs)
def test_words_to_an_older_rank_mean_the_same(word: m.Down) -> None:
    older = agent_pb2.DownMessage.FromString(through("DownMessage", encode_down(word)))
    assert plain(decode_down(older)) == plain(word)


@pytest.mark.parametrize("part", ["identity", "shape", "profile", "placement", "status"])
def test_an_older_hello_without_a_part_that_we_need_is_refused_by_its_name(part: str) -> None:
    older = OLDER["eplb.v1.UpMessage"].FromString(encode_up(words.a_hello()).SerializeToString())
    older.hello.ClearField(part)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    with pytest.raises(InvalidRequest, match=f"came without its {part}; the message is refused"):
        decode_up(agent_pb2.UpMessage.FromString(older.SerializeToString()))
