"""Files of operators: read without touching, written whole or not at all."""

import os
import tempfile
from pathlib import Path

from eplb_service.cli.ends import Exit, Failure, invalid

MAX_FILE_BYTES = 64 << 20


def read_text(path: Path) -> str:
    """Read a file, opened for reading only; raises Failure."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise invalid(
                f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; is it the right file?"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise invalid(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise invalid(f"{path} is not text in UTF-8") from error


def write_whole(path: Path, text: str) -> None:
    """Put a file in the place of what was there, at once; raises Failure with that untouched."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            try:
                file.write(text)
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
