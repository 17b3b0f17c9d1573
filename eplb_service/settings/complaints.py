"""What is wrong with settings, in words: every field, its value and what was expected."""

from typing import Final

from pydantic import ValidationError

_EXPECTED: Final = {"extra_forbidden": "is not a setting", "missing": "is missing"}
_OWN_WORDS: Final = {
    "model_type": "expected a section, which is an object of settings",
    "model_attributes_type": "expected a section, which is an object of settings",
    "int_parsing_size": "a number of too many digits",
}
"""Where pydantic's words name classes or functions of Python."""


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
    if kind in _OWN_WORDS:
        message = _OWN_WORDS[kind]
    shown = repr(value)
    cut = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"{name} = {cut}: {message[:1].lower()}{message[1:]}"
