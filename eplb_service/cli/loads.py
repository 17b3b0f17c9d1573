"""Load that was counted elsewhere, as files hold it.

Axes    T windows   L MoE layers   E logical experts

Formats
    counts    .npz or .npy: every array is a window [L, E], or [T, L, E] whose stages are summed;
              an only array [T, L, E] is T windows. JSON: one array [L, E] or [T, L, E]
    sglang    `logical_count` [L, E] or [T, L, E], in a JSON object or alone in an .npz: one
              window, its forward passes summed; rows of dense layers hold nothing and are left out
    heat      the JSON of `eplbctl heat -o json`
    recording what `eplbctl record start` wrote (docs/recording.md)
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import cast
from zipfile import ZipFile

import numpy as np

from eplb_service.cli.ends import invalid
from eplb_service.cli.files import NO_ARRAYS, read_bytes
from eplb_service.cli.recordings import decode_recording, is_recording
from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.json_text import read_json

SGLANG_KEY = "logical_count"
NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"
TORCH_MEMBER = "data.pkl"
MAX_UNPACKED_BYTES = 1 << 30
MOST_TOKENS = 1e15
"""In all of a file; sums of whole numbers are exact up to nine times that."""
EXPECTED = "expected tokens [layers, experts] or [windows, layers, experts]"
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Arrays = Mapping[str, Array]


class LoadFormat(StrEnum):
    """Who writes load so."""

    COUNTS = "counts"
    SGLANG = "sglang"
    HEAT = "heat"
    RECORDING = "recording"


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Windows of load in their order."""

    tokens: FloatArray
    """[T, L, E]"""
    layers: tuple[int, ...]
    """[L] number of each layer in the file."""
    form: LoadFormat
    num_steps: int | None = None
    """Steps that all windows enclose; None where the file does not say."""
    placement: str = ""
    """Text of the expert map that was served; empty where the file does not say."""

    @property
    def total(self) -> FloatArray:
        """[L, E] all windows taken together."""
        return self.tokens.sum(axis=0)


def read_loads(path: Path) -> Loads:
    """Read a file of load; raises Failure, saying what is wrong with it."""
    try:
        return loads_of(read_bytes(path))
    except InvalidTable as error:
        raise invalid(f"{path}: {error}; nothing was computed") from error


def loads_of(data: bytes) -> Loads:
    """Read load from a file's bytes, in the format that they look like; raises InvalidTable."""
    if data.startswith(ZIP):
        return _of_arrays(unpacked(data))
    if data.startswith(NPY):
        return _of_arrays({"array": _array(data)})
    return _of_tree(_tree(data))


def unpacked(data: bytes) -> Arrays:
    """Return the arrays of an .npz file by name; raises InvalidTable."""
    try:
        with ZipFile(io.BytesIO(data)) as packed:
            members = packed.infolist()
        if any(member.filename.endswith(TORCH_MEMBER) for member in members):
            raise InvalidTable(
                "a file of PyTorch, which may run code and is not opened; write its counts as "
                f"JSON or .npz: numpy.savez('counts.npz', {SGLANG_KEY}=torch.load(FILE, "
                f"weights_only=True)['{SGLANG_KEY}'].numpy())"
            )
        if sum(member.file_size for member in members) > MAX_UNPACKED_BYTES:
            raise InvalidTable(f"holds more than {MAX_UNPACKED_BYTES >> 20} MiB; record less")
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            return {name: np.asarray(stored[name]) for name in stored.files}
    except NO_ARRAYS as error:
        raise InvalidTable(f"no .npz file of arrays: {error}") from error


def _array(data: bytes) -> Array:
    try:
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except NO_ARRAYS as error:
        raise InvalidTable(f"no numpy array: {error}") from error


def _of_arrays(arrays: Arrays) -> Loads:
    if is_recording(arrays):
        recording = decode_recording(arrays)
        return Loads(
            _counts("tokens", arrays["tokens"]),
            recording.model_layers,
            LoadFormat.RECORDING,
            num_steps=sum(window.num_steps for window in recording.windows),
            placement=recording.placement,
        )
    if list(arrays) == [SGLANG_KEY]:
        return _of_sglang(arrays[SGLANG_KEY])
    found = {name: _counts(name, array) for name, array in arrays.items()}
    shapes = {name: list(array.shape[1:]) for name, array in found.items()}
    if len({tuple(shape) for shape in shapes.values()}) != 1:
        raise InvalidTable(f"windows of different shapes, or none: {shapes}")
    if len(found) == 1:
        return _plain(next(iter(found.values())))
    return _plain(np.stack([array.sum(axis=0) for array in found.values()]))


def _tree(data: bytes) -> object:
    try:
        return read_json(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidTable("neither JSON nor arrays of numpy") from error
    except ValueError as error:
        raise InvalidTable(str(error)) from error


def _of_tree(tree: object) -> Loads:
    match tree:
        case list():
            return _plain(_listed("the array", cast("object", tree)))
        case dict() if SGLANG_KEY in tree:
            found = cast("dict[str, object]", tree)
            return _of_sglang(_listed(SGLANG_KEY, found[SGLANG_KEY]))
        case dict() if "tokens" in tree and "layers" in tree:
            found = cast("dict[str, object]", tree)
            tokens = _listed("tokens", found["tokens"])
            return Loads(tokens, _numbers(found["layers"], tokens.shape[1]), LoadFormat.HEAT)
        case _:
            raise InvalidTable(
                f"an array of tokens, an object with {SGLANG_KEY}, or what `eplbctl heat -o json` "
                "writes was expected"
            )


def _listed(name: str, value: object) -> FloatArray:
    try:
        return _counts(name, np.array(value, dtype=np.float64))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidTable(f"{name} is no array of numbers, or ragged; {EXPECTED}") from error


def _numbers(value: object, count: int) -> tuple[int, ...]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    numbers = tuple(n for n in listed if isinstance(n, int) and not isinstance(n, bool))
    if len(numbers) != count or len(listed) != count:
        raise InvalidTable(f"layers is {value!r}; expected a number for each of {count} rows")
    return numbers


def _of_sglang(array: Array) -> Loads:
    summed = _counts(SGLANG_KEY, array).sum(axis=0)
    has_load = summed.any(axis=1)
    if not has_load.any():
        raise InvalidTable(f"{SGLANG_KEY} holds no token")
    layers = tuple(np.flatnonzero(has_load).tolist())
    return Loads(summed[None, has_load], layers, LoadFormat.SGLANG)


def _plain(tokens: FloatArray) -> Loads:
    return Loads(tokens, tuple(range(tokens.shape[1])), LoadFormat.COUNTS)


def _counts(name: str, array: Array) -> FloatArray:
    """[T, L, E] counts that make sense; raises InvalidTable."""
    if array.ndim not in {2, 3} or not array.size or not np.issubdtype(array.dtype, np.number):
        raise InvalidTable(f"{name} is {array.dtype} {list(array.shape)}; {EXPECTED}")
    if np.iscomplexobj(array):
        raise InvalidTable(f"{name} is {array.dtype}; {EXPECTED}")
    tokens = array.astype(np.float64)
    if not np.isfinite(tokens).all() or (tokens < 0).any():
        raise InvalidTable(f"{name} has counts below 0 or not finite; {EXPECTED}")
    if tokens.max() > MOST_TOKENS or tokens.sum() > MOST_TOKENS:
        raise InvalidTable(
            f"{name} has more than {MOST_TOKENS:.0e} tokens in all, which no model ever computed "
            f"and sums do not hold exactly; {EXPECTED}"
        )
    return tokens if tokens.ndim == 3 else tokens[None]
