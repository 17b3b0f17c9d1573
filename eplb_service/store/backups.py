"""Backup and restore of the store that a URL names."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from eplb_service.domain.errors import InvalidSettings
from eplb_service.store import sqlite_backup
from eplb_service.store.copying import Copied, Restoring
from eplb_service.store.locate import KNOWN, without_secrets

# The Redis client is loaded where it is needed, and nowhere else.


def back_up(url: str, file: Path) -> Copied:
    """Write a store into a new file; see sqlite_backup and redis_backup."""
    if _is_redis(url):
        from eplb_service.store import redis_backup  # noqa: PLC0415 -- only for its URLs

        return redis_backup.back_up(url, file)
    return sqlite_backup.back_up(_path(url), file)


def restore(url: str, restoring: Restoring) -> Copied:
    """Replace what a store holds by a backup; see sqlite_backup and redis_backup."""
    if _is_redis(url):
        from eplb_service.store import redis_backup  # noqa: PLC0415 -- as above

        return redis_backup.restore(url, restoring)
    return sqlite_backup.restore(_path(url), restoring)


def _is_redis(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in {"redis", "rediss"} and bool(parts.hostname)


def _path(url: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "sqlite" or not path or parts.netloc or path.endswith("/"):
        raise InvalidSettings(
            f"store.url is {without_secrets(url)!r}, which names no store that can be backed up or "
            f"restored; known: {KNOWN}, but for memory:"
        )
    return Path(path)
