"""Arrays over a pipe: eight bytes of length, then the array as a .npy file."""

from io import BytesIO
from typing import IO, Any

import numpy as np
import numpy.typing as npt

__all__ = ["receive", "send"]

LENGTH_BYTES = 8


def send(pipe: IO[bytes], array: npt.NDArray[Any]) -> None:
    """Write one array; the caller flushes."""
    file = BytesIO()
    np.save(file, array)
    pipe.write(len(file.getvalue()).to_bytes(LENGTH_BYTES, "little"))
    pipe.write(file.getvalue())


def receive(pipe: IO[bytes]) -> npt.NDArray[Any]:
    """Read one array; raises EOFError where the other end has closed the pipe."""
    length = int.from_bytes(_exactly(pipe, LENGTH_BYTES), "little")
    return np.load(BytesIO(_exactly(pipe, length)))


def _exactly(pipe: IO[bytes], length: int) -> bytes:
    read = pipe.read(length)
    if len(read) < length:
        raise EOFError(f"the pipe ended after {len(read)} of {length} bytes")
    return read
