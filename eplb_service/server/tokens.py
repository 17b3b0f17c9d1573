"""Bearer tokens: a file that says whose each is. None is ever logged or shown.

Format    one a line: a caller's URI (domain.access), blanks, the token: 32 to 512 printable
          ASCII characters without blanks. Lines that are empty or begin with # say nothing.
"""

import hashlib
import hmac
import logging
from pathlib import Path

from eplb_service.domain.access import Caller, caller_of
from eplb_service.domain.errors import InvalidSettings, Unauthenticated
from eplb_service.server.key_files import Watched, read_file

log = logging.getLogger(__name__)

SHORTEST, LONGEST = 32, 512
MOST_BYTES = 1 << 20


class TokenBook:
    """Whose token is whose; follows its file."""

    def __init__(self, file: Path) -> None:
        """Read it; raises InvalidSettings."""
        self._file = file
        self._watched = Watched((file,), lambda: read_tokens(file))

    def caller(self, token: str) -> Caller:
        """Return whose token this is; raises Unauthenticated.

        Every kept token is compared, each in constant time, so that the time of an answer tells
        nothing of how near a guess was.
        """
        try:
            if self._watched.refreshed():
                log.info("tokens read again", extra={"file": str(self._file)})
        except InvalidSettings as wrong:
            log.error("tokens not read again", extra={"code": wrong.code, "text": str(wrong)})  # noqa: TRY400 -- the text says it all
        given = _fingerprint(token)
        found = [
            caller
            for kept, caller in self._watched.value.items()
            if hmac.compare_digest(kept, given)
        ]
        if not found:
            raise Unauthenticated(
                "the token is not one of this controller's; expected one that its file of tokens "
                "holds; nothing was done"
            )
        return found[0]


def read_tokens(file: Path) -> dict[bytes, Caller]:
    """Read a file of tokens into fingerprints; raises InvalidSettings, by line, never a token."""
    raw = read_file(file, "file of tokens")
    if len(raw) > MOST_BYTES:
        raise InvalidSettings(f"file of tokens {file} has {len(raw)} bytes; expected {MOST_BYTES}")
    found: dict[bytes, Caller] = {}
    for number, line in enumerate(raw.split(b"\n"), start=1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        where = f"file of tokens {file}, line {number}"
        if len(words) != 2:
            raise InvalidSettings(f"{where} has {len(words)} words; expected a URI and a token")
        try:
            caller = caller_of(words[0].decode("ascii", "backslashreplace"))
        except Unauthenticated as error:
            raise InvalidSettings(f"{where}: its first word names no caller") from error
        if not SHORTEST <= len(words[1]) <= LONGEST or not _is_printable(words[1]):
            raise InvalidSettings(
                f"{where}: the token of {caller.uri} has {len(words[1])} characters; expected "
                f"{SHORTEST} to {LONGEST} printable ones, for example of `openssl rand -hex 32`"
            )
        fingerprint = _fingerprint(words[1].decode())
        if fingerprint in found:
            raise InvalidSettings(f"{where} repeats the token of {found[fingerprint].uri}")
        found[fingerprint] = caller
    if not found:
        raise InvalidSettings(f"file of tokens {file} holds none")
    return found


def _fingerprint(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _is_printable(token: bytes) -> bool:
    return all(0x21 <= byte <= 0x7E for byte in token)
