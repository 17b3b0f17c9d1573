"""Which store a URL names.

sqlite:///var/lib/eplb.db    a file, by its absolute path
sqlite:eplb.db               a file, relative to the working folder
memory:                      this process's memory; everything is lost when it ends
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from eplb_service.domain.errors import InvalidSettings
from eplb_service.store.memory import MemoryStore
from eplb_service.store.sqlite import SqliteStore

KNOWN = "sqlite:///absolute/path, sqlite:relative/path, memory:"


def open_store(url: str, *, deadline_s: float = 5.0) -> SqliteStore | MemoryStore:
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
        case _:
            raise InvalidSettings(f"store.url is {url!r}, which names no store; known: {KNOWN}")
