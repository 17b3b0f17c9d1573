"""Files of operators: read without touching, written whole or not at all."""

import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from pathlib import Path

from eplb_service.cli.ends import Exit, Failure, invalid

MAX_FILE_BYTES = 64 << 20
NO_ARRAYS = (
    *(ValueError, KeyError, OSError, EOFError, MemoryError, NotImplementedError, RuntimeError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error),
)
"""What numpy and zipfile raise for bytes that are no arrays, or are damaged."""


def read_bytes(path: Path) -> bytes:
    """Read a file, opened for reading only, and never more than a map can be; raises Failure."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise invalid(f"{path} cannot be read: {error.strerror}; nothing was done") from error
    if len(data) > MAX_FILE_BYTES:
        raise invalid(
            f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; is it the right file? "
            "Nothing was done"
        )
    return data


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
