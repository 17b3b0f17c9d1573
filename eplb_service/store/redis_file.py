"""The text file that a Redis store is backed up into: one JSON object a line.

{"format": "eplb-redis", "version": 1, "at_s": 1.7e9}             first; at_s is Unix time
{"key": "{eplb}:fence", "type": "string", "parts": [B]}           one line a key
{"key": "{eplb}:NAME", "type": "hash", "parts": [B, B, ...]}      field and value in turn
{"key": "{eplb}:deployments", "type": "set", "parts": [B, ...]}
{"key": "{eplb}:audit", "type": "list", "parts": [B, ...]}
{"lines": N, "sha256": HEX}                                       last; of all lines before

B is base64 of the bytes that Redis holds. What the keys mean is told in redis_ledger.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from eplb_service.domain.errors import InvalidRequest
from eplb_service.store.copying import unreadable

FORMAT, VERSION = "eplb-redis", 1
KeyType = Literal["string", "hash", "set", "list"]


@dataclass(frozen=True, slots=True)
class Kept:
    """One key and all that Redis holds there."""

    key: str
    type: KeyType
    parts: tuple[bytes, ...]
    """One of a string; field and value in turn of a hash; the members of a set or list."""


@dataclass(frozen=True, slots=True)
class _Head:
    format: str
    version: int
    at_s: float


@dataclass(frozen=True, slots=True)
class _Line:
    key: str
    type: KeyType
    parts: list[str]


@dataclass(frozen=True, slots=True)
class _End:
    lines: int
    sha256: str


_HEAD: Final = TypeAdapter(_Head)
_LINE: Final = TypeAdapter(_Line)
_END: Final = TypeAdapter(_End)


def pack(kept: Sequence[Kept], *, at_s: float) -> bytes:
    """Write keys as a file's text."""
    lines: list[dict[str, object]] = [{"format": FORMAT, "version": VERSION, "at_s": at_s}]
    for one in kept:
        parts = [base64.b64encode(part).decode() for part in one.parts]
        lines.append({"key": one.key, "type": one.type, "parts": parts})
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    end = {"lines": len(lines), "sha256": hashlib.sha256(text).hexdigest()}
    return text + json.dumps(end).encode() + b"\n"


def unpack(file: Path) -> tuple[Kept, ...]:
    """Read keys from a file; raises InvalidRequest saying what is wrong with it."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise unreadable(file, error.strerror) from error
    head, *lines = text.splitlines(keepends=True) or [b""]
    _require_known(file, head)
    if not lines:
        raise _cut_short(file)
    end, lines = lines[-1], lines[:-1]
    try:
        said = _END.validate_json(end)
    except ValidationError as error:
        raise _cut_short(file) from error
    digest = hashlib.sha256(head + b"".join(lines)).hexdigest()
    if said != _End(len(lines) + 1, digest):
        raise unreadable(file, "its lines are not those that its last line tells of")
    return tuple(_kept(file, number, line) for number, line in enumerate(lines, start=2))


def _require_known(file: Path, line: bytes) -> None:
    try:
        head = _HEAD.validate_json(line)
    except ValidationError as error:
        raise unreadable(file, "its first line is not that of a Redis store's backup") from error
    if head.format != FORMAT:
        raise unreadable(file, f"its format is {head.format!r}, expected {FORMAT!r}")
    if head.version != VERSION:
        raise unreadable(
            file,
            f"it was written by another release (file version {head.version}, this one reads "
            f"{VERSION}); run that release",
        )


def _kept(file: Path, number: int, line: bytes) -> Kept:
    try:
        read = _LINE.validate_json(line)
        parts = tuple(base64.b64decode(part, validate=True) for part in read.parts)
    except ValueError as error:  # also of pydantic and of base64
        raise unreadable(file, f"line {number} tells of no key ({error})") from error
    return Kept(read.key, read.type, parts)


def _cut_short(file: Path) -> InvalidRequest:
    return unreadable(file, "it is cut short: its last line must tell how many came before")
