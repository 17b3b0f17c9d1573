"""Which store a URL names.

sqlite:///var/lib/eplb.db    a file, by its absolute path
sqlite:eplb.db               a file, relative to the working folder
redis://host:6379/0          a Redis server (rediss: with TLS), for more than one node
memory:                      this process's memory; everything is lost when it ends
"""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from eplb_service.domain.errors import InvalidSettings
from eplb_service.store.memory import MemoryStore
from eplb_service.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from eplb_service.store.redis_store import RedisStore

KNOWN = "sqlite:///absolute/path, sqlite:relative/path, redis://host:port/0, rediss:, memory:"


def open_store(url: str, *, deadline_s: float = 5.0) -> "SqliteStore | RedisStore | MemoryStore":
    """Open the store that a URL names; raises InvalidSettings for one that names none.

    No file is touched before the first call. deadline_s bounds every call.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    match parts.scheme:
        case "memory" if not parts.netloc and not path:
            return MemoryStore()
        case "sqlite" if path and not parts.netloc and not path.endswith("/"):
            return SqliteStore(Path(path), deadline_s=deadline_s)
        case "redis" | "rediss" if parts.hostname:
            # The client is loaded where it is needed, and nowhere else.
            from eplb_service.store.redis_store import RedisStore  # noqa: PLC0415 -- only for its URLs

            return RedisStore(url, deadline_s=deadline_s)
        case _:
            raise InvalidSettings(
                f"store.url is {without_secrets(url)!r}, which names no store; known: {KNOWN}"
            )


def without_secrets(url: str) -> str:
    """Return a URL as it may be shown: user and password left out.

    >>> without_secrets("redis://eplb:secret@db:6379/0")
    'redis://...@db:6379/0'
    """
    head, at, tail = url.rpartition("@")
    return f"{head.partition('//')[0]}//...@{tail}" if at else url
