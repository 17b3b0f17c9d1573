"""Numbers that name things, and the array types that carry them."""

import hashlib
from collections.abc import Iterable
from typing import NewType

import numpy as np
from numpy.typing import NDArray

Epoch = NewType("Epoch", int)
"""Number of a deployment's placement; spent once per wave, never reused."""
Revision = NewType("Revision", int)
"""Version of the dispatch tables within an epoch."""
Generation = NewType("Generation", int)
"""Incarnation of the controller: the fencing token."""
Incarnation = NewType("Incarnation", int)
"""Incarnation of a rank group, from its start; ordered."""
Digest = NewType("Digest", int)
"""63-bit fingerprint, so that it travels in a signed 64-bit agreement vector."""

IntArray = NDArray[np.int32]
CountArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

NO_DIGEST = Digest(0)
"""Stands for "nothing"; no content has it."""


def digest_of(parts: Iterable[bytes]) -> Digest:
    """Fingerprint byte strings, each with its length, so that boundaries count.

    BLAKE2b (RFC 7693) cut to 63 bits; never zero.
    """
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return Digest(int.from_bytes(state.digest(), "little") >> 1 or 1)


def array_bytes(array: NDArray[np.generic]) -> bytes:
    """Shape, dtype and content of an array, little-endian and in row order."""
    plain = np.ascontiguousarray(array)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    return f"{plain.dtype.str}{plain.shape}".encode() + plain.tobytes()


def frozen(array: NDArray[np.generic]) -> None:
    """Refuse any later write through this array."""
    array.setflags(write=False)
