"""Where a controller is, as people write it."""

import re
from argparse import ArgumentTypeError

DEFAULT_ENDPOINT = "127.0.0.1:50051"
FORM = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})", re.ASCII)
"""A name, an address, or an IPv6 address in brackets; then the port."""


def endpoint(text: str) -> str:
    """Read host:port, or several with commas between them."""
    for part in text.split(","):
        _require_endpoint(part)
    return text


def _require_endpoint(text: str) -> None:
    found = FORM.fullmatch(text)
    if found is None or not 0 < int(found[1]) < 65536:
        raise ArgumentTypeError(
            f"{text!r} is no endpoint; write HOST:PORT, for example {DEFAULT_ENDPOINT}"
        )
