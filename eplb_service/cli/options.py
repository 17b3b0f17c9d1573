"""What every verb is told on the command line, and how words become values."""

import getpass
import os
import platform
import uuid
from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass
from enum import StrEnum

from eplb_service.cli.contexts import Context, chosen
from eplb_service.cli.durations import parse_duration
from eplb_service.cli.endpoints import DEFAULT_ENDPOINT, endpoint
from eplb_service.cli.ends import invalid
from eplb_service.cli.keys import Keys, given_keys

ENDPOINT_VARIABLE = "EPLB_ENDPOINT"
CALL_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 600.0
MOST_IN_32_BITS = (1 << 31) - 1
MOST_IN_64_BITS = (1 << 63) - 1
MOST_LAYERS = 1024
EXAMPLE = "budget.max_moves=96"
"""A setting and a value for it."""


class Output(StrEnum):
    """How answers are written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Options:
    """The options that all verbs share."""

    endpoint: str
    deployment: str
    """Empty: the only one there is."""
    output: Output
    timeout_s: float
    request_id: str
    who: str
    keys: Keys

    @classmethod
    def of(cls, args: Namespace) -> "Options":
        """Take them from the command line, the environment and the defaults; first come wins."""
        given = vars(args)
        patience = WAIT_TIMEOUT_S if given.get("wait") else given.get("patience_s", CALL_TIMEOUT_S)
        context = chosen(args) if given.get("needs_controller", True) else None
        return cls(
            endpoint=given.get("endpoint") or _endpoint_of(args, context),
            deployment=given.get("deployment", context.deployment if context else ""),
            output=Output(given.get("output", Output.TABLE)),
            timeout_s=given.get("timeout", patience),
            request_id=given.get("request_id") or str(uuid.uuid4()),
            who=me(),
            keys=given_keys(args, _keys_of(args, context)),
        )


def _endpoint_of(args: Namespace, context: Context | None) -> str:
    """The context named in this command, then the environment, then the current context."""
    if context and ("context" in vars(args) or not os.environ.get(ENDPOINT_VARIABLE)):
        return context.endpoint
    return default_endpoint()


def _keys_of(args: Namespace, context: Context | None) -> Keys:
    """The context's keys, for the context's controller alone: no other is shown its token."""
    given = vars(args)
    elsewhere = given.get("endpoint") or os.environ.get(ENDPOINT_VARIABLE)
    return context if context and ("context" in given or not elsewhere) else Keys()


def default_endpoint() -> str:
    """Return the endpoint of the environment; raises Failure where it is none."""
    given = os.environ.get(ENDPOINT_VARIABLE)
    if not given:
        return DEFAULT_ENDPOINT
    try:
        return endpoint(given)
    except ArgumentTypeError as error:
        raise invalid(f"{ENDPOINT_VARIABLE}: {error}") from error


def me() -> str:
    """Who runs this command, for the history."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{platform.node() or 'unknown'}"


def duration(text: str) -> float:
    """Read a span of time in seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def layers(text: str) -> tuple[int, ...]:
    """Read layer numbers: 3, 0-7, or 0,4,8-11."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ArgumentTypeError(
                f"{text!r} names no layers; write numbers of MoE layers, for example 3, 0-7 or "
                "0,4,8-11"
            )
        num_layers = int(last or first) + 1 - int(first)
        if num_layers < 1:
            raise ArgumentTypeError(f"{part!r} is no range of layers; write the smaller one first")
        if num_layers > MOST_LAYERS:
            raise ArgumentTypeError(f"{part!r} are {num_layers} layers; at most {MOST_LAYERS}")
        found.extend(range(small_number(first), small_number(last or first) + 1))
    return tuple(dict.fromkeys(found))


def whole_number(text: str) -> int:
    """Read a number of 0 or more that fits the messages' 64 bits."""
    return _number(text, MOST_IN_64_BITS)


def small_number(text: str) -> int:
    """Read a number of 0 or more that fits the messages' 32 bits."""
    return _number(text, MOST_IN_32_BITS)


def _number(text: str, most: int) -> int:
    if not text.isdecimal() or len(text) > len(str(most)) or int(text) > most:
        raise ArgumentTypeError(f"{text!r} is no whole number from 0 to {most}")
    return int(text)


def assignment(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ArgumentTypeError(f"{text!r} sets nothing; write NAME=VALUE, for example {EXAMPLE}")
    return name.strip(), value.strip()
