"""Where a controller is, as people write it."""

from argparse import ArgumentTypeError

DEFAULT_ENDPOINT = "127.0.0.1:50051"


def endpoint(text: str) -> str:
    """Read host:port, or several with commas between them."""
    for part in text.split(","):
        _require_endpoint(part)
    return text


def _require_endpoint(text: str) -> None:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ArgumentTypeError(
            f"{text!r} is no endpoint; write HOST:PORT, for example {DEFAULT_ENDPOINT}"
        )
