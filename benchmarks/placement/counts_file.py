"""Windows from a file of expert counts.

Axes    T stages   L MoE layers   E logical experts
"""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from benchmarks.placement.scenarios import CountArray
from eplb_service.domain.errors import InvalidTable

__all__ = ["counts_of_file"]


def counts_of_file(path: Path) -> list[CountArray]:
    """Return the tokens [L, E] of each window of an .npz file, in file order.

    Every array is a window: [L, E], or [T, L, E], whose stages are summed. Where the file has
    one array of three axes alone, each of its T is a window. Raises InvalidTable for a file
    that cannot be read so, or with windows of different shapes.
    """
    arrays = _arrays(path)
    if len(arrays) == 1:
        name, [only] = next(iter(arrays)), arrays.values()
        if only.ndim == 3:
            arrays = {f"{name}[{at}]": stage for at, stage in enumerate(only)}
    for name, array in arrays.items():
        _require_counts(f"{path.name}: {name}", array)
    found = {n: a.sum(axis=0) if a.ndim == 3 else a for n, a in arrays.items()}
    shapes = {array.shape for array in found.values()}
    if len(shapes) != 1:
        listed = ", ".join(f"{n} {list(a.shape)}" for n, a in found.items())
        raise InvalidTable(f"{path.name} has windows of different shapes, or none: {listed}")
    return [array.astype(np.int64) for array in found.values()]


def _arrays(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    try:
        with path.open("rb") as file, np.load(file) as stored:
            return {name: np.asarray(stored[name]) for name in stored.files}
    except (OSError, ValueError, AttributeError, BadZipFile) as unreadable:
        raise InvalidTable(
            f"{path} cannot be read as an .npz file of counts: {unreadable}"
        ) from unreadable


def _require_counts(name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    if array.ndim not in {2, 3} or not array.size or array.dtype.kind not in "iuf":
        raise InvalidTable(
            f"{name} has shape {list(array.shape)} and dtype {array.dtype}; expected counts "
            "[layers, experts] or [stages, layers, experts]"
        )
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise InvalidTable(f"{name} has counts below 0 or not finite; expected tokens")
    if (numbers != np.floor(numbers)).any() or numbers.max(initial=0.0) >= 2.0**62:
        raise InvalidTable(f"{name} has counts with a fraction or from 2^62; expected whole tokens")
