"""Turn any contract into text, so that two of them can be compared by content."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray


def plain(value: object, name: str = "") -> list[str]:
    """Return one line per leaf; arrays with dtype and shape, NaN by name."""
    return list(_lines(value, name))


def _lines(value: object, name: str) -> Iterator[str]:
    if is_dataclass(value) and not isinstance(value, type):
        yield f"{name}: {type(value).__name__}"
        for field in fields(value):
            yield from _lines(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        yield f"{name}: {len(items)} items"
        for index, item in enumerate(items):
            yield from _lines(item, f"{name}[{index}]")
    elif isinstance(value, np.ndarray):
        array = cast("NDArray[np.generic]", value)
        yield f"{name}: {array.dtype} {array.shape} {array.tolist()!r}"
    else:
        yield f"{name}: {type(value).__name__} {value!r}"
