"""What is wrong with settings, in words: every field, its value and what was expected."""

from typing import Final

from pydantic import ValidationError

_EXPECTED: Final = {"extra_forbidden": "is not a setting", "missing": "is missing"}


def complaints(error: ValidationError) -> str:
    """List every wrong field of one validation.

    Values are shown as given, cut to what fits a line.
    """
    return "; ".join(
        _complaint(".".join(map(str, found["loc"])), found["type"], found["msg"], found["input"])
        for found in error.errors(include_url=False, include_context=False)
    )


def _complaint(name: str, kind: str, message: str, value: object) -> str:
    if kind in _EXPECTED:
        return f"{name} {_EXPECTED[kind]}"
    shown = repr(value)
    cut = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"{name} = {cut}: {message[:1].lower()}{message[1:]}"
