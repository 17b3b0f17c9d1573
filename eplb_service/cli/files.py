"""Files of operators: read without touching, written whole or not at all."""

import os
import re
import select
import stat
import struct
import tempfile
import time
import tokenize
import zipfile
import zlib
from contextvars import ContextVar
from io import RawIOBase
from pathlib import Path

from eplb_service.cli.durations import show_duration
from eplb_service.cli.ends import Exit, Failure, invalid

MAX_FILE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 16
POLL_S = 60.0
"""Less than poll can count, for deadlines that are days away or never."""
OPENED = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/(\d{1,4})", re.ASCII)
"""Names of what this process has open, such as a shell puts in the place of `<(command)`."""
PATIENCE_S = ContextVar("PATIENCE_S", default=30.0)
"""How long a pipe may take: the command's own --timeout."""
NO_ARRAYS = (
    *(ValueError, KeyError, OSError, EOFError, MemoryError, NotImplementedError, RuntimeError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error),
)
"""What numpy and zipfile raise for bytes that are no arrays, or are damaged."""


def read_bytes(path: Path) -> bytes:
    """Read a file or pipe, for reading only, and never more than a map can be; raises Failure.

    A pipe is read until it ends or the command's deadline is over.
    """
    try:
        data = _read(path)
    except OSError as error:
        raise invalid(f"{path} cannot be read: {error.strerror}; nothing was done") from error
    if len(data) > MAX_FILE_BYTES:
        raise invalid(
            f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; is it the right file? "
            "Nothing was done"
        )
    return data


def _read(path: Path) -> bytes:
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # what opening a folder raises says it all
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    opened = OPENED.fullmatch(str(path))
    if not (opened or stat.S_ISFIFO(mode)):
        raise invalid(f"{path} is neither a file nor a pipe; nothing was done")
    # One that is open already is not opened anew: the end of its writer would not be seen.
    pipe = os.dup(int(opened[1] or 0)) if opened else os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(pipe, "rb", buffering=0) as file:
        return _piped(path, file)


def _piped(path: Path, file: RawIOBase) -> bytes:
    data, patience_s = bytearray(), PATIENCE_S.get()
    give_up_at = time.monotonic() + patience_s
    looking = select.poll()
    looking.register(file, select.POLLIN)
    while len(data) <= MAX_FILE_BYTES:
        left_s = give_up_at - time.monotonic()
        if left_s <= 0:
            raise Failure(
                Exit.NO_ANSWER,
                f"{path} is a pipe that did not end within {show_duration(patience_s)}; nothing "
                "was done",
            )
        if looking.poll(min(left_s, POLL_S) * 1000):
            part = file.read(CHUNK_BYTES)
            if not part:
                break
            data += part
    return bytes(data)


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in the place of what was there, at once; raises Failure with that untouched."""
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).chmod(0o644)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise Failure(
            Exit.FAILED, f"{path} cannot be written: {error.strerror}; what was there is untouched"
        ) from error
