"""Backup and restore of what a Redis server holds of a store; redis_file tells the file's format.

All keys are read at one moment, and written by one script, which looks first whether a leader has
given a sign of life. Keys of others in the same database are neither read nor touched.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast

from redis.exceptions import RedisError

from eplb_service.domain.audit import AuditEntry, follow
from eplb_service.domain.errors import InvalidRequest, StoreUnavailable
from eplb_service.domain.ids import Generation
from eplb_service.store import audits
from eplb_service.store import redis_ledger as ledgers
from eplb_service.store.copying import (
    Copied,
    Restoring,
    await_nobody_leads,
    led,
    next_generation,
    require_new,
    require_room,
    restored_now,
    told,
    unreadable,
)
from eplb_service.store.redis_file import Kept, KeyType, pack, unpack
from eplb_service.store.redis_ledger import BEATS, FENCE, NAMES, Keys
from eplb_service.store.redis_wire import Command, Wire

T = TypeVar("T")
DEADLINE_S = 60.0
PARTS_AT_ONCE = 500
"""Of one command; even, for fields go with their values. A script's call takes some thousands."""
READ: dict[KeyType, tuple[str, ...]] = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "set": ("SMEMBERS",),
    "list": ("LRANGE", "0", "-1"),
}
WRITE: dict[KeyType, str] = {"string": "SET", "hash": "HSET", "set": "SADD", "list": "RPUSH"}


def back_up(url: str, file: Path) -> Copied:
    """Write the store into a new file; raises StoreUnavailable or InvalidRequest."""
    require_new(file)
    kept = _asked(url, "back it up; nothing was written", _read)
    part = file.with_name(f"{file.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
            out.write(pack(kept, at_s=time.time()))
            out.flush()
            os.fsync(out.fileno())
        part.rename(file)
    except OSError as error:
        raise InvalidRequest(f"cannot write {part}: {error.strerror}") from error
    return _told(kept)


def restore(url: str, restoring: Restoring) -> Copied:
    """Replace what the store holds by a backup.

    Raises InvalidRequest for a file that cannot be restored or a store that holds data,
    StoreConflict where a controller leads.
    """
    kept = unpack(restoring.file)
    _require_ours(kept, restoring.file)
    what = "restore it; whether it is done will be seen when it answers again"
    _asked(url, what, lambda wire: _replace_all(wire, kept, restoring))
    return _told(kept)


def _asked(url: str, what: str, work: Callable[[Wire], T]) -> T:
    wire = Wire(url, deadline_s=DEADLINE_S)
    try:
        wire.require_durable()
        return work(wire)
    except RedisError as error:
        raise StoreUnavailable(f"store {wire.place}: could not {what}: {error}") from error
    finally:
        wire.close()


# ---- read ---------------------------------------------------------------------


def _layout(names: Sequence[str]) -> Iterator[tuple[str, KeyType]]:
    """All keys of a store with these deployments."""
    yield FENCE, "string"
    yield BEATS, "string"
    yield NAMES, "set"
    yield audits.KEY, "list"
    for name in names:
        keys = Keys(name)
        for key in (keys.head, keys.epochs, keys.past, keys.bodies):
            yield key, "hash"
        yield keys.history, "list"


def _read(wire: Wire) -> tuple[Kept, ...]:
    """Return all keys that there are, as they are at one moment."""
    while True:
        names = cast("list[bytes]", wire.ask("SMEMBERS", NAMES))
        layout = list(_layout(sorted(name.decode() for name in names)))
        asked = [(READ[kind][0], key, *READ[kind][1:]) for key, kind in layout]
        replies = wire.look(*asked)
        found = [
            Kept(key, kind, _parts(kind, reply))
            for (key, kind), reply in zip(layout, replies, strict=True)
            if reply
        ]
        if set(_names(found)) == {name.decode() for name in names}:
            break  # otherwise a deployment was registered between the two looks
    if not any(one.key == FENCE for one in found):
        raise StoreUnavailable(f"store {wire.place}: it holds no store; nothing was written")
    return tuple(found)


def _parts(kind: KeyType, reply: object) -> tuple[bytes, ...]:
    match kind:
        case "string":
            return (cast("bytes", reply),)
        case "hash":
            return tuple(part for pair in ledgers.pairs(reply) for part in pair)
        case "set" | "list":
            return tuple(cast("list[bytes]", reply))


def _of(kept: Sequence[Kept], key: str) -> tuple[bytes, ...]:
    return next((one.parts for one in kept if one.key == key), ())


def _names(kept: Sequence[Kept]) -> list[str]:
    return sorted(name.decode() for name in _of(kept, NAMES))


def _audit(kept: Sequence[Kept]) -> list[AuditEntry]:
    """Oldest first."""
    return [audits.ENTRY.validate_json(line) for line in reversed(_of(kept, audits.KEY))]


def _told(kept: Sequence[Kept]) -> Copied:
    return told(_names(kept), _audit(kept))


# ---- write --------------------------------------------------------------------


def _require_ours(kept: Sequence[Kept], file: Path) -> None:
    """Raise InvalidRequest unless the keys are those that a store has, with what belongs there."""
    known = dict(_layout(_names(kept)))
    for one in kept:
        if known.get(one.key) != one.type:
            raise unreadable(file, f"a store has no {one.type} {one.key!r}")
    try:
        Generation(int(b"".join(_of(kept, FENCE))))
        _audit(kept)
    except ValueError as error:  # also of pydantic
        raise unreadable(file, f"its fence or its audit is damaged ({error})") from error


def _replace_all(wire: Wire, kept: Sequence[Kept], restoring: Restoring) -> None:
    seen = await_nobody_leads(lambda: ledgers.pulse(wire), restoring.watch_s)
    held = sorted(name.decode() for name in cast("list[bytes]", wire.ask("SMEMBERS", NAMES)))
    newest = next(iter(audits.newest_lines(wire, 0, 1)), None)
    require_room(held, cast("int", wire.ask("LLEN", audits.KEY)), restoring)
    generation = next_generation(seen, Generation(int(_of(kept, FENCE)[0])))
    entry = follow(next(reversed(_audit(kept)), None), restored_now(restoring, newest))
    keys = sorted({key for key, _ in _layout([*held, *_names(kept)])} - {FENCE, BEATS})
    commands: list[Command] = [
        *(("DEL", key) for key in keys),
        *(command for one in kept for command in _commands(one)),
        ("SET", FENCE, generation),
        ("SET", BEATS, 0),
        ("LPUSH", audits.KEY, audits.ENTRY.dump_json(entry)),
    ]
    if not wire.replace((FENCE, BEATS, *keys), (seen.generation, seen.beats), commands):
        raise led(ledgers.pulse(wire))


def _commands(kept: Kept) -> Iterator[Command]:
    for first in range(0, len(kept.parts), PARTS_AT_ONCE):
        yield (WRITE[kept.type], kept.key, *kept.parts[first : first + PARTS_AT_ONCE])
