"""Arrays as packed little-endian bytes.

Decoding gives a read-only view of the message's bytes; nothing is allocated before the length
agrees with the shape.
"""

from math import prod

import numpy as np
from eplb.v1 import types_pb2

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.ids import CountArray, FloatArray, IntArray

MAX_ELEMENTS = 1 << 24
"""64 MiB of 32-bit numbers, what one gRPC message may carry."""

DTYPES = {
    "<i4": types_pb2.DTYPE_INT32,
    "<i8": types_pb2.DTYPE_INT64,
    "<f8": types_pb2.DTYPE_FLOAT64,
}
INT32, INT64, FLOAT64 = (np.dtype(name) for name in DTYPES)


def encode_matrix(array: IntArray | CountArray | FloatArray) -> types_pb2.Matrix:
    """Pack an array of int32, int64 or float64, with at least one axis."""
    little = array.dtype.newbyteorder("<")
    return types_pb2.Matrix(
        data=array.astype(little, copy=False).tobytes(),
        dtype=DTYPES[little.str],
        shape=array.shape,
    )


def decode_ints(matrix: types_pb2.Matrix, where: str, *, axes: int) -> IntArray:
    """View an int32 matrix; raises InvalidTable unless type, shape and length are right."""
    data = _checked(matrix, where, dtype=INT32, axes=axes)
    flat = np.frombuffer(data, dtype=INT32).astype(np.int32, copy=False)
    return flat.reshape(tuple(matrix.shape))


def decode_counts(matrix: types_pb2.Matrix, where: str, *, axes: int) -> CountArray:
    """View an int64 matrix; raises InvalidTable unless type, shape and length are right."""
    data = _checked(matrix, where, dtype=INT64, axes=axes)
    flat = np.frombuffer(data, dtype=INT64).astype(np.int64, copy=False)
    return flat.reshape(tuple(matrix.shape))


def decode_floats(matrix: types_pb2.Matrix, where: str, *, axes: int) -> FloatArray:
    """View a float64 matrix, in which NaN is "no data"; raises InvalidTable as the others do."""
    data = _checked(matrix, where, dtype=FLOAT64, axes=axes)
    flat = np.frombuffer(data, dtype=FLOAT64).astype(np.float64, copy=False)
    return flat.reshape(tuple(matrix.shape))


def _checked(
    matrix: types_pb2.Matrix, where: str, *, dtype: np.dtype[np.generic], axes: int
) -> bytes:
    """Return the bytes of a matrix that is what its reader expects."""
    shape, data = tuple(matrix.shape), matrix.data
    if matrix.dtype != DTYPES[dtype.str]:
        raise InvalidTable(
            f"{where} has dtype number {matrix.dtype}; expected {DTYPES[dtype.str]} "
            f"({dtype.name}); the message is refused"
        )
    if len(shape) != axes or min(shape) < 0:
        raise InvalidTable(
            f"{where} has shape {_shown(shape)}; expected {axes} axes, none negative; "
            "the message is refused"
        )
    if prod(max(length, 1) for length in shape) > MAX_ELEMENTS:
        raise InvalidTable(
            f"{where} has shape {_shown(shape)}; expected at most {MAX_ELEMENTS} elements; "
            "the message is refused"
        )
    if len(data) != prod(shape) * dtype.itemsize:
        raise InvalidTable(
            f"{where} has {len(data)} bytes; expected {prod(shape) * dtype.itemsize} for shape "
            f"{list(shape)} of {dtype.name}; the message is refused"
        )
    return data


def _shown(shape: tuple[int, ...]) -> str:
    """Write a shape down, cut short where it has absurdly many axes."""
    return str(list(shape[:8])) + (f" and {len(shape) - 8} axes more" if len(shape) > 8 else "")
