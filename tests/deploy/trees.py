"""Trees as JSON and YAML have them, and telling their parts apart for the type checker."""

from typing import Any, TypeGuard

Json = dict[str, Any]


def is_tree(value: Any) -> TypeGuard[Json]:
    """Whether it is an object."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is an array."""
    return isinstance(value, list)


def merged(below: Json, above: Json) -> Json:
    """Two trees as one, the second on top."""
    both = dict(below)
    for name, value in above.items():
        lower = both.get(name)
        both[name] = merged(lower, value) if is_tree(value) and is_tree(lower) else value
    return both
