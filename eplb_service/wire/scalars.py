"""Checks of single fields: numbers, digests, texts, parts that must be there, enums.

`where` names the field in the messages of an error, e.g. "Hello.profile.rank".
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from google.protobuf.message import Message

from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.ids import Digest

MAX_TEXT = 256

Word = TypeVar("Word", bound=StrEnum)
Value = TypeVar("Value", bound=int)


def require(message: Message, *fields: str) -> None:
    """Raise InvalidRequest unless every named part of the message was sent."""
    for field in fields:
        if not message.HasField(field):
            name = message.DESCRIPTOR.name
            raise InvalidRequest(f"{name} came without its {field}; the message is refused")


def natural(value: int, where: str, *, most: int | None = None) -> int:
    """Return a number that must not be negative, nor above `most`."""
    if value < 0 or (most is not None and value > most):
        limit = "at least 0" if most is None else f"0 to {most}"
        raise InvalidRequest(f"{where} is {value}; expected {limit}; the message is refused")
    return value


def positive(value: int, where: str, *, most: int | None = None) -> int:
    """Return a number that must be 1 or more, and not above `most`."""
    if value < 1:
        raise InvalidRequest(f"{where} is {value}; expected at least 1; the message is refused")
    return natural(value, where, most=most)


def digest(value: int, where: str) -> Digest:
    """Return a 63-bit fingerprint."""
    if not 0 <= value < 1 << 63:
        raise InvalidRequest(
            f"{where} is {value:#x}; expected a fingerprint of 63 bits; the message is refused"
        )
    return Digest(value)


def short(text: str, where: str) -> str:
    """Return a text that goes into names and labels."""
    if len(text) > MAX_TEXT:
        raise InvalidRequest(
            f"{where} has {len(text)} characters; expected at most {MAX_TEXT}; "
            "the message is refused"
        )
    return text


def named(text: str, where: str) -> str:
    """Return a text that must not be empty, nor too long for a name."""
    if not text:
        raise InvalidRequest(f"{where} is empty; expected a name; the message is refused")
    return short(text, where)


class EnumTable(Generic[Word, Value]):
    """One enum of the domain and its twin in proto, whose zero value is no member."""

    def __init__(self, values: Mapping[Word, Value]) -> None:
        self._values = dict(values)
        self._words = {int(value): word for word, value in values.items()}

    @property
    def words(self) -> frozenset[Word]:
        """Every word that the table can translate."""
        return frozenset(self._values)

    def encode(self, word: Word) -> Value:
        """Return the proto value of a word."""
        return self._values[word]

    def decode(self, value: int, where: str) -> Word:
        """Return the word of a proto value; raises InvalidRequest for zero and unknown values."""
        word = self._words.get(value)
        if word is None:
            known = ", ".join(f"{number} ({name})" for number, name in sorted(self._words.items()))
            raise InvalidRequest(f"{where} is {value}; expected one of {known}")
        return word
