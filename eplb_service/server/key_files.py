"""Files of certificates, keys and tokens, read again whenever they change."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from eplb_service.domain.errors import InvalidSettings

T = TypeVar("T")
Looked = tuple[tuple[int, int, int], ...]
TRIES = 3
"""Reads of a set of files that somebody replaces meanwhile."""


class Watched(Generic[T]):
    """What some files say; read again when one of them is another than before."""

    def __init__(self, paths: tuple[Path, ...], read: Callable[[], T]) -> None:
        """Read them once; raises what `read` raises."""
        self._paths, self._read = paths, read
        self._seen, self.value = self._whole()

    def refreshed(self) -> bool:
        """Read again if a file changed; True if what they say is new.

        Raises InvalidSettings, with the old value kept, where they make no sense now; it is not
        raised again before they change once more.
        """
        now = _look(self._paths)
        if now == self._seen:
            return False
        self._seen = now
        self._seen, self.value = self._whole()
        return True

    def _whole(self) -> tuple[Looked, T]:
        """Read until no file changed while it was read."""
        for _ in range(TRIES - 1):
            before = _look(self._paths)
            try:
                value = self._read()
            except InvalidSettings:
                if before != _look(self._paths):
                    continue  # half of them are replaced
                raise
            if before == _look(self._paths):
                return before, value
        return _look(self._paths), self._read()


def read_file(path: Path, what: str) -> bytes:
    """Read one file; raises InvalidSettings that names what it is for."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSettings(f"{what} {path}: {error.strerror}") from error


def require_pair(certificate: Path, key: Path) -> None:
    """Raise InvalidSettings unless the certificate and the key are of one another."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidSettings(
            f"certificate {certificate} and key {key} make no pair ({_plain(error)}); expected "
            "PEM files, the key without a password"
        ) from error


def require_authorities(file: Path) -> None:
    """Raise InvalidSettings unless the file holds certificates of authorities."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        raise InvalidSettings(
            f"certificate authority {file} cannot be read ({_plain(error)}); expected a PEM file"
        ) from error


def _no_password() -> str:
    raise ValueError("the key has a password")


def _plain(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def _look(paths: tuple[Path, ...]) -> Looked:
    looked: list[tuple[int, int, int]] = []
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            looked.append((0, 0, 0))
        else:
            looked.append((found.st_ino, found.st_mtime_ns, found.st_size))
    return tuple(looked)
