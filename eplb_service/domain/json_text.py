"""JSON as people's files hold it: what Python lets pass or words by itself is refused in ours."""

import json
from typing import cast


def read_json(text: str) -> object:
    """Return what a text holds; raises ValueError that says what is wrong, and where it can.

    JSON lets a name come twice in one object, and the last would hide the others: refused.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from error
    except RecursionError as error:
        raise ValueError("not read: it is nested too deep") from error
    except _Twice:
        raise
    except ValueError as error:
        raise ValueError("not read: it holds a number of thousands of digits") from error


class _Twice(ValueError):
    pass


def _object(members: list[tuple[str, object]]) -> object:
    made = dict(members)
    if len(made) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Twice(f"{twice} occurs more than once in one object")
    return cast("object", made)
