"""Views as plain trees for machines: the same facts, with the views' own field names as keys.

NaN and infinity, which JSON has not, become null: there is no data.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from math import isfinite
from typing import cast

import numpy as np

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def plain(value: object) -> Plain:
    """Turn a view into mappings, lists and scalars."""
    match value:
        case None | bool() | str():
            return value.value if isinstance(value, Enum) else value
        case int():
            return int(value)
        case float():
            return value if isfinite(value) else None
        case np.ndarray():
            return plain(cast("list[object]", value.tolist()))
        case Mapping():
            items = cast("Mapping[str, object]", value).items()
            return {str(key): plain(inner) for key, inner in items}
        case Sequence():
            return [plain(inner) for inner in cast("Sequence[object]", value)]
        case _:
            assert dataclasses.is_dataclass(value), f"{type(value).__name__} is no view"
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}


def as_json(tree: Plain) -> str:
    """Write a tree as JSON."""
    return json.dumps(tree, indent=2, allow_nan=False)


def as_yaml(tree: Plain) -> str:
    """Write a tree as YAML; raises ModuleNotFoundError on the base install, which has no PyYAML."""
    import yaml  # noqa: PLC0415 -- see above

    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=False).rstrip("\n")
